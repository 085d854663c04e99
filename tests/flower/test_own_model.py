"""A client of a federation takes home the model that a simulation gives it, from its own folder alone."""

import numpy as np
import pytest
from in_process import in_process
from organisations import small_quickstart

import fedmrl as package
from fedmrl.flower.client_config import load_organisation
from fedmrl.flower.own_model import trained_client


@pytest.mark.parametrize("method", ["fedmrl", "fedproto", "fedkd", "standalone"])
def test_the_model_is_that_of_a_simulation(tmp_path, monkeypatch, method):
    recipe = small_quickstart(method, models__small={"conv1": 2, "conv2": 2, "fc1": 6, "fc2": 6})
    with in_process(tmp_path, recipe, monkeypatch) as federation:
        federation.run()
    simulated = package.run(recipe, engine="reference", device="cpu")
    for client in range(3):
        organisation = load_organisation(tmp_path / "clients" / f"client-{client}" / "client.toml")
        trained, line = trained_client(organisation)
        expected, x = simulated.client(client), organisation.data.x[:5]
        for mode in trained.modes:
            assert np.array_equal(trained.scores(x, mode), expected.scores(x, mode)), mode
        says = "use nothing of the server's" if method == "standalone" else "that the server sent last"
        assert line.endswith(says)


def test_client_export_writes_the_model_and_says_what_is_wrong(tmp_path, monkeypatch, fedmrl):
    recipe = small_quickstart(rounds=1)
    with in_process(tmp_path, recipe, monkeypatch) as federation:
        folder = tmp_path / "clients" / "client-1"
        code, _, err = fedmrl("client", "export", folder, "--to", "m.pt2")
        assert code == 2 and "has no run; let the client take part in one" in err
        federation.run()
    code, out, err = fedmrl("client", "export", folder, "--to", "m.pt2", "--mode", "mix-small")
    assert code == 0 and (tmp_path / "m.pt2").exists(), err
    assert out.startswith("Model: m.pt2 (") and "mode mix-small), with the shared part that the server sent last" in out
    code, _, err = fedmrl("client", "export", folder, "--to", "n.pt2", "--run", "other")
    assert code == 2 and "has no run 'other'; it has r\n" in err
    received = next((folder / "state" / "runs" / "r").glob("received-*.safetensors"))
    received.write_bytes(received.read_bytes()[:-1] + b"!")
    code, _, err = fedmrl("client", "export", folder, "--to", "n.pt2")
    assert code == 2 and "is damaged or was changed: its SHA-256" in err and not (tmp_path / "n.pt2").exists()

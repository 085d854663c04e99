"""A client of a federation takes home the model that a simulation gives it, from its own folder alone."""

import numpy as np
import pytest
import torch
from in_process import in_process
from organisations import federation, small_quickstart

import fedmrl as package
from fedmrl.flower.client_config import load_organisation
from fedmrl.flower.own_model import trained_client
from fedmrl.flower.states import RunStates


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


def test_in_mid_run_an_older_shared_part_is_not_joined_to_a_newer_state(tmp_path):
    recipe = small_quickstart(rounds=2, models__small={"conv1": 2, "conv2": 2, "fc1": 6, "fc2": 6})
    with federation(tmp_path, recipe) as (setting, (peer, *_)):
        path, sent = tmp_path / "0" / "client.toml", setting.server_start()
        organisation = load_organisation(path)

        def small_bias():
            trained, line = trained_client(organisation)
            return trained.module("single-small").net.small.header.bias, line

        def own_bias(round_):
            states = RunStates.open(tmp_path / "0" / "state" / "runs" / "r")
            return states.load(round_)["small.header.bias"]

        peer.hello()
        peer.train(0, None, sent)
        peer.evaluate(0, sent)
        found, line = small_bias()
        assert line == "with the shared part that the server sent last"
        assert torch.equal(found, sent["small.header.bias"])
        peer.train(1, 0, sent)
        found, line = small_bias()
        assert line == ("with the shared part as this client trained it last; the server has sent none for an evaluation since")
        assert torch.equal(found, own_bias(1)) and not torch.equal(found, sent["small.header.bias"])


def test_a_model_is_read_while_the_agent_trains_on_and_deletes_its_files(tmp_path, monkeypatch):
    recipe = small_quickstart(rounds=3, models__small={"conv1": 2, "conv2": 2, "fc1": 6, "fc2": 6})
    with federation(tmp_path, recipe) as (setting, (peer, *_)):
        organisation, sent = load_organisation(tmp_path / "0" / "client.toml"), setting.server_start()
        peer.hello()
        peer.train(0, None, sent)
        read, asked = RunStates.load, []

        def load(states, round_):
            asked.append(round_)
            if asked == [0]:
                peer.train(1, 0, sent)
                peer.train(2, 1, sent)
            return read(states, round_)

        monkeypatch.setattr(RunStates, "load", load)
        found = trained_client(organisation)[0].module("single-small").net.small.header.bias
        newest = read(RunStates.open(tmp_path / "0" / "state" / "runs" / "r"), 2)
        assert asked[0] == 0 and torch.equal(found, newest["small.header.bias"])


def test_the_modes_of_a_federations_client_are_measured_without_an_accuracy(tmp_path):
    recipe = small_quickstart(rounds=1)
    with federation(tmp_path, recipe) as (setting, (peer, *_)):
        peer.hello()
        peer.train(0, None, setting.server_start())
        rows = trained_client(load_organisation(tmp_path / "0" / "client.toml"))[0].measure_modes()
    assert [row.mode for row in rows] == ["mix-large", "mix-small", "single-small", "single-large"]
    assert all(row.accuracy is None and row.parameters > 0 for row in rows)


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

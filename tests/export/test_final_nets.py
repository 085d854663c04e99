"""A client's final net predicts as the run measured it, from memory and from a folder; what is missing is reported."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny import ALL_METHODS, data_file, tiny_recipe
from torch import nn

import fedmrl
from fedmrl import RunResult, UserError
from fedmrl.federation import server

DATA = np.load(data_file())


def accuracies(result, split, mode):
    """Each client's accuracy on its test samples, by its trained model."""
    found = []
    for client, own in enumerate(split):
        predicted = result.client(client).predict(DATA["x"][own["test"]], mode)
        found.append((predicted == DATA["y"][own["test"]]).mean())
    return found


@pytest.mark.parametrize("method", ALL_METHODS)
def test_every_mode_of_every_client_is_as_accurate_as_the_run_says(tmp_path, method):
    recipe = tiny_recipe(method, rounds=2)
    in_memory = fedmrl.run(recipe)
    fedmrl.run(recipe, out=tmp_path / "run")
    read, split = RunResult.read(tmp_path / "run"), json.loads((tmp_path / "run" / "split.json").read_text())["clients"]
    assert any(row.rounds == 0 for row in read.clients), "the claim covers clients that never took part"
    for mode in read.client(0).modes:
        expected = [row.accuracy_by(read.view, mode) for row in read.clients]
        assert accuracies(in_memory, split, mode) == pytest.approx(expected), mode
        assert accuracies(read, split, mode) == pytest.approx(expected), mode


def test_a_comparison_keeps_final_models(tmp_path):
    made = fedmrl.compare(tiny_recipe("fedmrl", rounds=1), ["standalone", "fml"], out=tmp_path / "c")
    x = DATA["x"][:3]
    for name in ("standalone", "fml"):
        read = RunResult.read(tmp_path / "c" / name)
        assert np.array_equal(made[name][0].client(1).scores(x), read.client(1).scores(x))


def test_a_finished_run_that_is_resumed_has_its_models_from_python_at_hand(tmp_path):
    given = {"models": own(), "out": tmp_path / "run"}
    first = fedmrl.run(tiny_recipe("standalone", rounds=1), **given)
    again = fedmrl.run(tiny_recipe("standalone", rounds=1), **given, resume=True)
    assert np.array_equal(first.client(2).scores(DATA["x"][:2]), again.client(2).scores(DATA["x"][:2]))


def own() -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 6), nn.ReLU(), nn.Linear(6, 4))


def test_a_model_from_python_is_needed_again_to_read_it_from_a_folder(tmp_path):
    result = fedmrl.run(tiny_recipe("fml", rounds=1), models=own(), small=own(), out=tmp_path / "run")
    read = RunResult.read(tmp_path / "run")
    with pytest.raises(
        UserError, match=r"client 2's model \(.*\) was given from Python; give it again there, as in result\.cl"
    ):
        read.client(2)
    with pytest.raises(UserError, match=r"the shared model \(small\) was given from Python; .*client\(2, small=…\)"):
        read.client(2, model=own())
    x = DATA["x"][:4]
    for mode in ("local", "small"):
        assert np.array_equal(read.client(2, model=own(), small=own()).scores(x, mode), result.client(2).scores(x, mode))


def test_another_model_than_the_trained_one_is_told(tmp_path):
    fedmrl.run(tiny_recipe("standalone", rounds=1, participation=1.0), models=own(), out=tmp_path / "run")
    other = nn.Sequential(nn.Flatten(), nn.Linear(256, 5), nn.ReLU(), nn.Linear(5, 4))
    with pytest.raises(
        UserError, match=r"client 0's trained model is not a 'Sequential': local\.extractor\.1\.bias has shape \[6\]"
    ):
        RunResult.read(tmp_path / "run").client(0, model=other).predict(DATA["x"][:1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    fedmrl.run(tiny_recipe("fedmrl", rounds=1, participation=1.0), out=folder)
    return folder


def copy_of(folder, tmp_path):
    import shutil

    return shutil.copytree(folder, tmp_path / "copy")


def test_a_damaged_state_is_told_by_its_file(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    file = folder / "checkpoint" / "client-00001-round-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match=r"client-00001-round-00001\.safetensors is damaged or was changed: its SHA-256"):
        RunResult.read(folder).client(1).predict(DATA["x"][:1])
    file.unlink()
    with pytest.raises(UserError, match=r"client-00001-round-00001\.safetensors cannot be read"):
        RunResult.read(folder).client(1).predict(DATA["x"][:1])


def test_a_run_of_an_older_version_is_told(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    plain = json.loads((folder / "summary.json").read_text())
    for key in ("preparation", "small_model", "sha256", "files"):
        del plain[key]
    (folder / "summary.json").write_text(json.dumps(plain))
    with pytest.raises(UserError, match="was written by a version that did not record the samples' form; run it again"):
        RunResult.read(folder).client(0)


def test_models_that_do_not_fit_into_memory_are_not_kept_and_a_folder_is_advised(monkeypatch):
    monkeypatch.setattr(server, "free_bytes", lambda device: 1000)
    with pytest.raises(UserError, match=r"final models were not kept: it has no folder, .* run it with out="):
        fedmrl.run(tiny_recipe("fedmrl", rounds=1)).client(0)


@pytest.mark.parametrize("number", [4, -1, True, "0", None])
def test_a_client_that_is_not_there_is_told(finished, number):
    with pytest.raises(UserError, match=r"there is no client .* they are numbered from 0 to 3"):
        RunResult.read(finished).client(number)


def test_a_mode_or_input_that_does_not_fit_is_told(finished):
    client = RunResult.read(finished).client(0)
    with pytest.raises(UserError, match="mode is 'local'; this model has mix-large, mix-small, single-small, single-large"):
        client.predict(DATA["x"], "local")
    with pytest.raises(UserError, match=r"the input has samples of shape \[1, 8, 8\]; this model was trained on \[1, 16, 16\]"):
        client.predict(np.zeros((2, 1, 8, 8), np.uint8))


class Picky(nn.Module):
    """A model that fails on large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        if x.max() > 1000:
            raise IndexError("index out of range")
        return self.fc(x)


def test_a_failure_of_a_users_own_model_is_a_sentence():
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    settings = {"clients": 2, "rounds": 1, "partition.classes_per_client": 2}
    result = fedmrl.run("quickstart", data=(x, x[:, 0] > 0), models=Picky, method="standalone", settings=settings)
    client = result.client(0)
    with pytest.raises(
        UserError, match=r"client 0's model 'Picky' fails on the input \(IndexError: index out of range\); give"
    ):
        client.scores(1e6 + x)


def test_no_sample_gives_no_prediction(finished):
    client = RunResult.read(finished).client(0)
    assert client.predict(np.zeros((0, 1, 16, 16), np.uint8)).shape == (0,) and client.scores(DATA["x"][:0]).shape == (0, 4)


def test_scores_are_probabilities_of_the_classes_as_they_came():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)).astype(np.float32), np.array(["well", "ill"])[rng.integers(2, size=60)]
    settings = {"models.local": [{"hidden": [6]}], "partition.classes_per_client": 2, "clients": 2, "rounds": 1, "method.d1": 3}
    client = fedmrl.run("quickstart", data=(x, y), settings=settings).client(0)
    scores = client.scores(x)
    assert scores.shape == (60, 2) and scores.sum(axis=1) == pytest.approx(np.ones(60))
    assert client.predict(x).tolist() == [client.classes[place] for place in scores.argmax(axis=1)]
    assert set(client.classes) == {"well", "ill"}


class Routed(nn.Module):
    """Sends each sample through one of its experts, most of which a small batch does not reach."""

    def __init__(self):
        super().__init__()
        self.gate, self.last = nn.Linear(5, 8), nn.Linear(5, 2)
        self.experts = nn.ModuleList(nn.Linear(5, 5) for _ in range(8))

    def forward(self, x):
        chosen, sent = self.gate(x).argmax(dim=1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            sent = torch.where((chosen == number)[:, None], expert(x) if (chosen == number).any() else sent, sent)
        return self.last(sent)


def test_a_model_that_chooses_its_layers_by_the_data_predicts_with_all_of_them():
    rng = np.random.default_rng(0)
    x, net = rng.normal(size=(64, 5)).astype(np.float32), Routed()
    settings = {"rounds": 1, "clients": 2, "participation": 1.0, "partition.kind": "iid"}
    training = {"lr": 1e-12, "momentum": 0.0}
    result = fedmrl.run(
        "quickstart",
        data=(x, rng.integers(0, 2, 64)),
        models=[net, net],
        method="standalone",
        settings=settings,
        training=training,
    )
    moments = torch.from_numpy(x.mean(axis=0)), torch.from_numpy(x.std(axis=0))
    with torch.no_grad():
        expected = torch.softmax(net((torch.from_numpy(x) - moments[0]) / moments[1]), dim=1)
    assert result.client(0).scores(x) == pytest.approx(expected.numpy(), abs=1e-4)

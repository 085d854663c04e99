"""Where states are kept makes no difference to a run, and a store on disk leaves nothing behind that does not count."""

import json
from pathlib import Path

import pytest
import torch
from tiny import tiny_recipe

import fedmrl
from fedmrl.errors import InterruptedRun, UserError
from fedmrl.federation import store as stores
from fedmrl.federation.launch import run_seeds
from fedmrl.federation.setup import prepare
from fedmrl.federation.store import DeviceStore, DiskStore, HostStore, choose

CPU = torch.device("cpu")
STATE = {"w": torch.arange(6.0).reshape(2, 3), "known": torch.tensor([True, False]), "n": torch.tensor(3)}


@pytest.mark.parametrize("make", [DeviceStore, HostStore, lambda device: DiskStore(device, None)])
def test_a_state_comes_back_as_it_was_kept(make):
    store = make(CPU)
    store.keep(7, 2, STATE)
    back = store.load(7, 2)
    assert back.keys() == STATE.keys()
    assert all(torch.equal(back[name], STATE[name]) and back[name].dtype == STATE[name].dtype for name in STATE)
    assert store.shapes(7, 2) == {"w": [2, 3], "known": [2], "n": []}
    store.close()


@pytest.mark.parametrize("method", ["fedmrl", "fedproto", "fedkd"])
@pytest.mark.parametrize("engine", ["reference", "batched"])
def test_a_run_with_states_on_disk_gives_what_it_gives_with_states_in_memory(tmp_path, method, engine):
    recipe = tiny_recipe(method, rounds=4)
    one = fedmrl.run(recipe, engine=engine)
    two = fedmrl.run(recipe, engine=engine, store="disk")
    three = fedmrl.run(recipe, engine=engine, store="disk", out=tmp_path / "run")
    for run in (two, three):
        assert run.accuracy == one.accuracy
        assert [record.loss for record in run.records] == [record.loss for record in one.records]
    assert (one.store, two.store) == ("device", "disk")


def test_the_checkpoint_of_a_run_on_disk_holds_each_client_once(tmp_path):
    fedmrl.run(tiny_recipe("fedmrl", rounds=4), store="disk", out=tmp_path / "run")
    folder = tmp_path / "run" / "checkpoint"
    named = json.loads((folder / "state.json").read_text())
    assert sorted(path.name for path in folder.glob("*.safetensors")) == sorted([*named["clients"].values(), named["server"]])


@pytest.mark.parametrize("first", ["disk", "device"])
def test_a_run_may_go_on_with_another_store(tmp_path, first):
    recipe = tiny_recipe("fedmrl", rounds=4)

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, store=first, out=tmp_path / "run", on_round=stop)
    gone_on = fedmrl.run(recipe, store={"disk": "device", "device": "disk"}[first], out=tmp_path / "run", resume=True)
    assert gone_on.accuracy == fedmrl.run(recipe).accuracy


def test_without_a_folder_superseded_files_are_deleted(monkeypatch):
    folders = []
    real = DiskStore.__init__

    def spy(self, device, folder):
        real(self, device, folder)
        folders.append(self.folder)

    monkeypatch.setattr(DiskStore, "__init__", spy)
    seen = []
    fedmrl.run(
        tiny_recipe("fedmrl", rounds=4, participation=1.0),
        store="disk",
        on_round=lambda _: seen.append(len(list(folders[0].glob("*.safetensors")))),
    )
    assert seen == [4] * 4
    assert not Path(folders[0]).exists()


def test_states_go_where_they_fit_and_it_is_said(monkeypatch):
    setting = prepare(tiny_recipe("fedmrl"), CPU)
    where, line = choose("auto", setting, 4)
    assert where == "device"
    assert line.startswith("clients' states are kept in memory: at most ")
    monkeypatch.setattr(stores, "free_bytes", lambda _: 1000)
    where, line = choose("auto", setting, 4)
    assert where == "disk"
    assert line.startswith("clients' states are kept on disk: at most ")


def test_clients_that_never_take_part_are_counted_since_they_are_kept_for_evaluations():
    lines = []
    recipe = tiny_recipe("fedmrl", rounds=1, participation=0.25)
    fedmrl.run(recipe, on_notice=lines.append)
    assert lines[-1].endswith("for 4 clients")
    lines.clear()
    run_seeds(recipe, [0, 1], on_notice=lines.append)
    assert lines[-1].endswith("for 8 clients")


def test_a_store_in_the_host_s_memory_copies_and_gives_back(tmp_path):
    store, state = HostStore(CPU), {"a": torch.ones(2, 3)}
    store.keep(0, 1, state)
    given = store.load(0, 1)
    given["a"].zero_()
    assert torch.equal(store.load(0, 1)["a"], torch.ones(2, 3))
    assert store.shapes(0, 1) == {"a": [2, 3]}


@pytest.mark.parametrize("make", [DeviceStore, HostStore, lambda device: DiskStore(device, None)])
def test_a_client_keeps_the_state_before_a_round_until_the_round_counts(make):
    store = make(CPU)
    before, after = {"a": torch.ones(2)}, {"a": torch.zeros(2)}
    store.keep(3, None, before)
    store.keep(3, 4, after)
    assert torch.equal(store.load(3, None)["a"], before["a"]) and torch.equal(store.load(3, 4)["a"], after["a"])
    store.drop_others(3, 4)
    assert store.has(3, 4) and not store.has(3, None) and not store.has(0, 4)
    assert torch.equal(store.load(3, 4)["a"], after["a"])
    store.close()


def test_a_store_that_there_is_not_is_refused():
    with pytest.raises(UserError, match="store is 'cloud'; choose auto, device, host or disk"):
        fedmrl.run(tiny_recipe("fedmrl"), store="cloud")


def test_a_few_states_at_a_time_are_fetched_for_an_evaluation(monkeypatch):
    recipe = tiny_recipe("fedmrl")
    whole = fedmrl.run(recipe)
    monkeypatch.setattr("fedmrl.federation.simulated._LOADED", 1)
    assert fedmrl.run(recipe, store="disk").accuracy == whole.accuracy

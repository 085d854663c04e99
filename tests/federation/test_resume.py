"""A run that was stopped and goes on ends bit for bit where one that was not stopped ends."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from damage import damaged
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny import ALL_METHODS, tiny_recipe

import fedmrl
from fedmrl.errors import InterruptedRun, UserError
from fedmrl.federation.checkpoint import Checkpoint, Snapshot
from fedmrl.federation.folder import RunFolder
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulation import Simulation
from fedmrl.federation.store import DeviceStore


def stop_after(rounds):
    def on_round(record):
        if record.round == rounds:
            raise KeyboardInterrupt

    return on_round


TIMES = ("seconds", "wall_seconds", "cpu_seconds", "files", "sha256")
"""What differs between runs that are the same: times, and checksums of what has times in it."""


def without_times(record):
    return {key: value for key, value in record.items() if key not in TIMES}


def assert_same_end(one: Path, two: Path):
    for name in ("config.toml", "split.json", "clients.csv"):
        assert (one / name).read_text() == (two / name).read_text()
    summaries = [without_times(json.loads((folder / "summary.json").read_text())) for folder in (one, two)]
    assert summaries[0] == summaries[1]
    records = [[without_times(json.loads(line)) for line in (f / "rounds.jsonl").read_text().splitlines()] for f in (one, two)]
    assert records[0] == records[1]
    states = [json.loads((folder / "checkpoint" / "state.json").read_text()) for folder in (one, two)]
    assert states[0]["clients"].keys() == states[1]["clients"].keys()
    names = [(states[0]["server"], states[1]["server"])]
    names += [(states[0]["clients"][k], states[1]["clients"][k]) for k in states[0]["clients"]]
    for a, b in names:
        first, second = load_file(one / "checkpoint" / a), load_file(two / "checkpoint" / b)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)


@given(st.sampled_from(ALL_METHODS), st.integers(1, 3), st.integers(0, 50), st.sampled_from(["fp32", "fp64"]))
@settings(max_examples=16)
@example("fedmrl", 1, 0, "fp32")
@example("fedkd", 2, 0, "fp32")
@example("fedapen", 2, 0, "fp32")
@example("fedproto", 1, 0, "fp32")
@example("fd", 1, 0, "fp32")
@example("fml", 1, 0, "fp32")
@example("lg-fedavg", 1, 0, "fp32")
@example("standalone", 1, 0, "fp32")
def test_resuming_equals_not_stopping(method, stop, seed, precision):
    recipe = tiny_recipe(method, rounds=4, seed=seed, training__precision=precision)
    with TemporaryDirectory() as folder:
        whole, parts = Path(folder) / "whole", Path(folder) / "parts"
        fedmrl.run(recipe, out=whole)
        with pytest.raises(InterruptedRun, match=f"stopped after round {stop} of 4, which is kept"):
            fedmrl.run(recipe, out=parts, on_round=stop_after(stop))
        fedmrl.run(recipe, out=parts, resume=True)
        assert_same_end(whole, parts)


def test_a_round_cut_short_leaves_no_trace(tmp_path, monkeypatch):
    from fedmrl.engines import ReferenceEngine

    recipe = tiny_recipe("fedmrl", rounds=3)
    fedmrl.run(recipe, out=tmp_path / "whole")
    real, calls = ReferenceEngine._train_one, []

    def interrupted(self, round_, turn):
        outcome = real(self, round_, turn)
        calls.append(turn)
        if len(calls) == 4:  # in the second round, after one of its two clients has trained
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(ReferenceEngine, "_train_one", interrupted)
    with pytest.raises(InterruptedRun, match="stopped after round 1 of 3"):
        fedmrl.run(recipe, out=tmp_path / "parts")
    monkeypatch.undo()
    fedmrl.run(recipe, out=tmp_path / "parts", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_a_log_that_is_ahead_of_the_checkpoint_is_cut_back(tmp_path):
    recipe = tiny_recipe("fedmrl", rounds=3)
    fedmrl.run(recipe, out=tmp_path / "whole")
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=tmp_path / "parts", on_round=stop_after(1))
    with (tmp_path / "parts" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "half')  # as a power cut would leave it
    fedmrl.run(recipe, out=tmp_path / "parts", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_resuming_before_the_first_checkpoint_starts_over(tmp_path):
    import shutil

    recipe = tiny_recipe("fml", rounds=2)
    fedmrl.run(recipe, out=tmp_path / "whole")
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=tmp_path / "parts", on_round=stop_after(1))
    shutil.rmtree(tmp_path / "parts" / "checkpoint")
    fedmrl.run(recipe, out=tmp_path / "parts", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_resuming_a_finished_run_gives_its_result_and_trains_nothing(tmp_path):
    recipe = tiny_recipe("standalone", rounds=1)
    first = fedmrl.run(recipe, out=tmp_path / "run")
    again = fedmrl.run(recipe, out=tmp_path / "run", resume=True, on_round=lambda _: pytest.fail("it trained"))
    assert again.plain() == first.plain() and len(again.records) == 1


def test_a_changed_recipe_is_refused_by_what_changed(tmp_path):
    fedmrl.run(tiny_recipe("fedmrl", rounds=1), out=tmp_path / "run")
    with pytest.raises(UserError) as refusal:
        fedmrl.run(tiny_recipe("fedmrl", rounds=1, training__lr=0.5, training__clip=1.0), out=tmp_path / "run", resume=True)
    assert "training.clip was 12.0, is now 1.0; training.lr was 0.05, is now 0.5" in str(refusal.value)


def unsealed(index):
    """Make it the index of a version that kept no checksums."""
    plain = json.loads(index.read_text())
    index.write_text(json.dumps({key: value for key, value in plain.items() if key not in ("files", "sha256")}))


def test_a_missing_split_is_told_as_missing(tmp_path):
    recipe = tiny_recipe("standalone", rounds=1)
    fedmrl.run(recipe, out=tmp_path / "run")
    (tmp_path / "run" / "split.json").unlink()
    with pytest.raises(UserError, match=r"split\.json is missing"):
        fedmrl.run(recipe, out=tmp_path / "run", resume=True)


def test_a_changed_split_is_refused(tmp_path):
    recipe = tiny_recipe("standalone", rounds=1)
    fedmrl.run(recipe, out=tmp_path / "run")
    (tmp_path / "run" / "split.json").write_text("{}")
    with pytest.raises(UserError, match="the data has changed since"):
        fedmrl.run(recipe, out=tmp_path / "run", resume=True)


def test_what_holds_no_run_cannot_be_resumed(tmp_path):
    with pytest.raises(UserError, match="holds no run to resume"):
        fedmrl.run(tiny_recipe(), out=tmp_path, resume=True)


@pytest.mark.parametrize("harm", ["state", "server", "log"])
def test_a_damaged_checkpoint_is_refused_in_a_sentence(tmp_path, harm):
    recipe = tiny_recipe("fedmrl", rounds=2)
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=tmp_path / "run", on_round=stop_after(1))
    folder = tmp_path / "run" / "checkpoint"
    if harm == "log":
        (tmp_path / "run" / "rounds.jsonl").write_text("")
    else:
        path = folder / "state.json" if harm == "state" else next(folder.glob("server-*"))
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match="is damaged"):
        fedmrl.run(recipe, out=tmp_path / "run", resume=True)


def test_a_run_of_a_version_that_lacked_a_key_goes_on_with_its_default(tmp_path):
    recipe, out = tiny_recipe("standalone", rounds=2), tmp_path / "run"
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=out, on_round=stop_after(1))
    config = out / "config.toml"
    older = [line for line in config.read_text().splitlines() if not line.startswith("set_aside")]
    config.write_text("\n".join(older))
    unsealed(out / "checkpoint" / "state.json")
    told = []
    assert fedmrl.run(recipe, out=out, resume=True, on_notice=told.append).status == "finished"
    assert any("started by a version without checksums" in line for line in told)


def harmed(plain, every):
    """Every n-th way to damage it."""
    return list(damaged(plain, ("other", -7, [])))[::every]


def test_a_damaged_summary_is_told_and_made_anew(tmp_path):
    recipe, out, told = tiny_recipe("standalone", rounds=1), tmp_path / "run", []
    first = fedmrl.run(recipe, out=out)
    for harm, changed in harmed(first.plain(), 13):
        (out / "summary.json").write_text(json.dumps(changed))
        again = fedmrl.run(recipe, out=out, resume=True, on_notice=told.append)
        assert again.inference == first.inference, harm
        assert json.loads((out / "summary.json").read_text())["status"] == "finished", harm
    assert any("summary.json is damaged; the run resumes" in line for line in told)


@pytest.mark.parametrize("name", ["rounds.jsonl", "checkpoint/state.json", "inputs.json"])
def test_a_run_that_was_stopped_goes_on_or_says_in_a_sentence_what_is_damaged(tmp_path, name):
    recipe, out = tiny_recipe("standalone", rounds=2), tmp_path / "run"
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=out, on_round=stop_after(1))
    whole = fedmrl.run(recipe)
    path, kept = out / name, {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    for harm, changed in harmed(json.loads(path.read_text()), 3):
        path.write_text(json.dumps(changed) + "\n")
        try:
            again = fedmrl.run(recipe, out=out, resume=True)
            assert (again.inference, again.clients) == (whole.inference, whole.clients), harm
        except UserError as refusal:
            assert len(str(refusal).splitlines()) == 1, harm
        (out / "summary.json").unlink(missing_ok=True)
        for file, content in kept.items():
            file.write_bytes(content)


def test_the_checkpoint_holds_the_newest_files_only(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    one, two = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
    store = DeviceStore(torch.device("cpu"))
    for client, round_, state in ((0, 0, one), (1, 0, one), (1, 1, two)):
        store.keep(client, round_, state)
    checkpoint.save(Snapshot(1, {"s": torch.ones(1)}, {0: 0, 1: 0}, {0: 1, 1: 1}), store.save, {})
    checkpoint.save(Snapshot(2, {"s": torch.ones(1)}, {0: 0, 1: 1}, {0: 1, 1: 2}), store.save, {})
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == [
        "client-00000-round-00001.safetensors",
        "client-00001-round-00002.safetensors",
        "server-round-00002.safetensors",
    ]
    found = DeviceStore(torch.device("cpu"))
    snapshot, files, _ = Checkpoint(tmp_path).load(found.device)
    for client, since in snapshot.last_round.items():
        found.restore(client, since, files[client])
    assert torch.equal(found.load(1, 1)["w"], two["w"]) and torch.equal(found.load(0, 0)["w"], one["w"])


@pytest.mark.parametrize("store", ["device", "disk"])
def test_states_that_nobody_wants_are_dropped_at_the_end_and_not_before(tmp_path, store):
    out, recipe = tmp_path / "run", tiny_recipe("fedmrl")
    with pytest.raises(InterruptedRun):
        fedmrl.run_seeds(recipe, [0], outs=[out], keep=False, store=store, on_round=stop_after(2))
    assert list(out.glob("checkpoint/*.safetensors"))
    done = fedmrl.run_seeds(recipe, [0], outs=[out], keep=False, store=store, resume=True)[0]
    assert done.accuracy == fedmrl.run(recipe).accuracy
    assert not (out / "checkpoint").exists()


def test_a_run_that_goes_on_elsewhere_names_both_places_and_counts_the_time_of_both(tmp_path, monkeypatch):
    recipe, out = tiny_recipe("fedmrl", rounds=3), tmp_path / "run"
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=out, engine="reference", on_round=stop_after(1))
    saved = out / "checkpoint" / "state.json"
    state = json.loads(saved.read_text())
    assert state["seconds"] > 0
    saved.write_text(json.dumps({**state, "seconds": 1000}))
    unsealed(saved)
    monkeypatch.setattr("fedmrl.federation.summary.device_name", lambda _: "a GPU")
    run = fedmrl.run(recipe, out=out, engine="batched", resume=True)
    assert run.engine == "reference, then batched"
    assert run.device == f"{state['devices'][0]}, then a GPU"
    assert run.wall_seconds > 1000


def test_a_place_where_no_round_was_made_is_not_named(tmp_path):
    recipe, out = tiny_recipe("fedmrl", rounds=1), tmp_path / "run"
    federation = Simulation(recipe, prepare(recipe, torch.device("cpu")), "reference")
    federation.folder = RunFolder.create(out, recipe, [*federation.clients.setting().members.values()])
    federation.interrupted()
    federation.folder.close()
    assert fedmrl.run(recipe, out=out, engine="batched", resume=True).engine == "batched"


def test_a_summary_says_how_many_seeds_were_run_as_one(tmp_path):
    recipe = tiny_recipe("standalone", rounds=1)
    assert fedmrl.run(recipe).together == 1
    assert [run.together for run in fedmrl.run_seeds(recipe, [0, 1])] == [2, 2]


def test_a_file_that_has_changed_since_is_not_gone_on_with(tmp_path):
    who = tmp_path / "who.json"
    who.write_text("[[0, 1], [0, 1], [0, 1]]")
    recipe, out = tiny_recipe("standalone", participation=str(who)), tmp_path / "run"
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=out, on_round=stop_after(1))
    who.write_text("[[2, 3], [2, 3], [2, 3]]")
    with pytest.raises(UserError, match="the file that participation names has changed since"):
        fedmrl.run(recipe, out=out, resume=True)
    who.write_text("[[0, 1], [0, 1], [0, 1]]")
    assert fedmrl.run(recipe, out=out, resume=True).status == "finished"


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    recipe, out = tiny_recipe("standalone"), tmp_path / "run"

    def another(record):
        with pytest.raises(UserError, match="is being written by another fedmrl"):
            fedmrl.run(recipe, out=out, resume=True)

    fedmrl.run(recipe, out=out, on_round=another)
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 3


def test_half_a_checkpoint_that_was_being_dropped_is_none(tmp_path, monkeypatch):
    with pytest.raises(InterruptedRun):
        fedmrl.run(tiny_recipe("standalone"), out=tmp_path / "run", on_round=stop_after(2))
    checkpoint = Checkpoint(tmp_path / "run" / "checkpoint")
    monkeypatch.setattr("shutil.rmtree", lambda folder, ignore_errors: next(folder.glob("*.safetensors")).unlink())  # killed
    checkpoint.drop()
    assert checkpoint.load(torch.device("cpu")) is None


@pytest.mark.parametrize("outs", ["ab", ["a"], ["a", "a"]])
def test_each_seed_needs_a_folder_of_its_own(tmp_path, monkeypatch, outs):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="outs must name a folder for each of the 2 seeds"):
        fedmrl.run_seeds(tiny_recipe("standalone"), [0, 1], outs=outs)
    assert not list(tmp_path.iterdir())

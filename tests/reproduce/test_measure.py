"""What is missing is measured, what is measured is not, and a stop loses nothing."""

import json
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
from tiny import tiny_recipe

import fedmrl
from fedmrl.errors import InterruptedRun, UserError
from fedmrl.reproduce import measure as module
from fedmrl.reproduce.cells import cell_path, read_cell, read_cells, write_cell
from fedmrl.reproduce.experiments import PAPER, RunSpec
from fedmrl.reproduce.measure import Estimator, measure, measure_all, missing_runs, training_samples
from fedmrl.reproduce.processes import ExitedProcess


@pytest.fixture(autouse=True)
def own_data(monkeypatch):
    """The tiny recipes' own file, in the place of data by name."""
    monkeypatch.setattr(module, "_data", lambda name: None)
    monkeypatch.setitem(module._SAMPLES, "arrays", 96)


def one(method="fedmrl", seeds=(0,), **settings):
    return RunSpec("tiny-n4", method, tiny_recipe(method, **settings), seeds)


def test_each_seed_gives_the_cell_that_it_gives_alone(tmp_path):
    together = measure(one(seeds=(0, 3)), tmp_path)
    alone = fedmrl.run(tiny_recipe("fedmrl", seed=3))
    assert [cell.seed for cell in together] == [0, 3]
    assert together[1].accuracy == alone.plain()["accuracy"]
    assert read_cells(tmp_path) == together
    assert together[0].command == "fedmrl reproduce tiny-n4/fedmrl --seeds 0,3"
    assert together[0].together == 2
    assert [path.name for path in tmp_path.iterdir()] == ["cells"], "nothing else is left behind"


def test_what_is_measured_is_skipped_unless_its_recipe_has_changed(tmp_path):
    wanted = [one(seeds=(0, 1)), one("standalone")]
    measure(one(seeds=(0,)), tmp_path)
    assert missing_runs(wanted, tmp_path) == [one(seeds=(1,)), one("standalone")]
    assert missing_runs([one(seeds=(0,), training__lr=0.01)], tmp_path) == [one(seeds=(0,), training__lr=0.01)]


def test_what_was_measured_when_fedmrl_gave_other_numbers_is_measured_again(tmp_path, monkeypatch):
    measure(one(), tmp_path)
    monkeypatch.setattr("fedmrl.reproduce.cells.NUMBERS", -1)
    assert missing_runs([one()], tmp_path) == [one()]


@contextmanager
def stops(wanted):
    """Stops a run after its second round."""

    def on_round(record):
        if record.round == 2:
            raise KeyboardInterrupt

    yield on_round


def running(folder):
    (found,) = folder.glob("running/tiny-n4/fedmrl-seed-0-*")
    return found


def test_a_run_that_was_stopped_goes_on_and_ends_where_it_would_have_ended(tmp_path):
    whole = measure(one(), tmp_path / "whole")[0]
    with pytest.raises(InterruptedRun):
        measure(one(), tmp_path / "parts", watch=stops)
    assert (running(tmp_path / "parts") / "rounds.jsonl").exists()
    assert not read_cells(tmp_path / "parts")
    parts = measure(one(), tmp_path / "parts")[0]
    assert parts.accuracy == whole.accuracy
    assert parts.curves == whole.curves


def test_the_time_of_a_run_that_was_stopped_is_of_all_its_sessions(tmp_path):
    with pytest.raises(InterruptedRun):
        measure(one(), tmp_path, watch=stops)
    saved = running(tmp_path) / "checkpoint" / "state.json"
    plain = {key: value for key, value in json.loads(saved.read_text()).items() if key not in ("files", "sha256")}
    saved.write_text(json.dumps({**plain, "seconds": 1000, "engines": ["another"]}))
    cell = measure(one(), tmp_path)[0]
    assert cell.wall_seconds > 1000
    assert cell.engine == "another, then reference"


@pytest.mark.parametrize("changed", [{"training__lr": 0.01}, {}], ids=["its recipe", "the numbers"])
def test_a_run_that_was_stopped_before_something_changed_starts_anew(tmp_path, monkeypatch, changed):
    with pytest.raises(InterruptedRun):
        measure(one(**changed), tmp_path, watch=stops)
    before = running(tmp_path)
    if not changed:
        monkeypatch.setattr("fedmrl.reproduce.cells.NUMBERS", -1)
    rounds = []
    cell = measure(one(), tmp_path, watch=lambda wanted: nullcontext(rounds.append))[0]
    assert [record.round for record in rounds] == [1, 2, 3]
    assert cell.accuracy == fedmrl.run(tiny_recipe("fedmrl")).plain()["accuracy"]
    assert not before.exists()


def test_seeds_that_begin_alike_do_not_disturb_each_other(tmp_path):
    with pytest.raises(InterruptedRun):
        measure(one(seeds=(10,)), tmp_path, watch=stops)
    measure(one(seeds=(1,)), tmp_path)
    assert len(list(tmp_path.glob("running/tiny-n4/fedmrl-seed-10-*"))) == 1


def test_a_method_that_diverges_is_a_cell_too(tmp_path):
    cell = measure(one(training__lr=1e30, training__precision="fp32"), tmp_path)[0]
    assert cell.status == "diverged"
    assert cell.diverged["round"] == 1
    assert cell.device
    assert not missing_runs([one(training__lr=1e30, training__precision="fp32")], tmp_path), "it is not tried again"


def test_all_are_measured_one_after_another_with_a_line_for_each(tmp_path):
    ends = list(measure_all([one(), one("standalone")], tmp_path, scale=PAPER, jobs=1, device="cpu", engine="auto"))
    assert [ended.name for ended in ends] == ["tiny-n4/fedmrl, seed 0", "tiny-n4/standalone, seed 0"]
    assert ends[0].seconds_left > ends[1].seconds_left == 0
    assert len(read_cells(tmp_path)) == 2


def test_when_the_time_is_up_a_run_stops_after_a_whole_round_and_goes_on_later(tmp_path):
    todo = [one(), one("standalone")]
    now = time.monotonic()
    assert not list(measure_all(todo, tmp_path, scale=PAPER, jobs=1, device="cpu", engine="auto", until=now))
    assert not (tmp_path / "running").exists(), "nothing is started when there is no time"

    @contextmanager
    def slow(wanted):
        yield lambda record: time.sleep(max(0.0, begun + 3 - time.monotonic()))  # the first round outlasts the time

    begun = time.monotonic()
    options = {"scale": PAPER, "jobs": 1, "device": "cpu", "engine": "auto", "watch": slow}
    assert not list(measure_all(todo, tmp_path, **options, until=begun + 2.9))
    log = running(tmp_path) / "rounds.jsonl"
    assert len(log.read_text().splitlines()) == 1
    assert len(list(measure_all(missing_runs(todo, tmp_path), tmp_path, **options))) == 2
    assert read_cells(tmp_path)[0].accuracy == fedmrl.run(tiny_recipe("fedmrl")).plain()["accuracy"]


def test_a_stop_before_the_time_is_up_is_one(tmp_path):
    @contextmanager
    def stop(wanted):
        def on_round(record):
            raise KeyboardInterrupt

        yield on_round

    with pytest.raises(InterruptedRun):
        list(measure_all([one()], tmp_path, scale=PAPER, jobs=1, device="cpu", engine="auto", watch=stop))


@pytest.mark.parametrize(("code", "said"), [(1, "failed (out of memory)"), (0, "0.0%")])
def test_of_runs_side_by_side_a_failure_is_told_and_the_others_go_on(tmp_path, monkeypatch, code, said):
    done = measure(one(), tmp_path)[0]
    lost = {key: {done.mode: {"last": 0.0, "best": 0.0, "best_round": 1}} for key in ("own", done.view)}
    write_cell(tmp_path, done.model_copy(update={"accuracy": {**done.accuracy, "all": lost}}))
    monkeypatch.setattr(
        module, "run_parallel", lambda *_: (ExitedProcess(name, code, "out of memory") for name in ["tiny-n4/fedmrl, seed 0"])
    )
    ends = measure_all([one()], tmp_path, scale=PAPER, jobs=2, device="cpu", engine="auto")
    assert [ended.said for ended in ends] == [said]


def test_of_runs_side_by_side_each_is_told_how_many_there_are(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(module, "run_parallel", lambda commands, *_: asked.update(commands) or (ended for ended in ()))
    list(measure_all([one(), one("standalone")], tmp_path, scale=PAPER, jobs=4, device="cpu", engine="auto"))
    assert all(words[-2:] == ["--at-once", "2"] for words in asked.values())
    ends = measure_all([one()], tmp_path, scale=PAPER, jobs=1, device="cpu", engine="auto", at_once=2)
    assert len(list(ends)) == 1
    assert read_cells(tmp_path)[0].at_once == 2


def test_of_runs_side_by_side_a_mistake_ends_them_all(tmp_path, monkeypatch):
    monkeypatch.setattr(
        module, "run_parallel", lambda *_: (ExitedProcess(name, 2, "no data") for name in ["tiny-n4/fedmrl, seed 0"])
    )
    with pytest.raises(UserError, match="no data"):
        list(measure_all([one()], tmp_path, scale=PAPER, jobs=2, device="cpu", engine="auto"))


def a_round(monkeypatch, start=0.0, **seconds):
    """What timing a round of two clients says."""
    row = {"clients": 2, "seconds": seconds, "seconds_to_start": start + seconds["train"] + seconds["evaluate"]}
    monkeypatch.setattr("fedmrl.bench.measure", lambda *_, **__: {"rows": [row]})


@pytest.mark.parametrize(
    ("spent", "seconds"),
    [
        ({"start": 7.0}, 7.0),
        ({"train": 1.0}, 3 * 2 * 2),  # rounds, epochs, of which one was timed, and seeds
        ({"train": 1.0, "encode": 1.0}, 3 * 2),  # encoding is a part of training that epochs do not multiply
        ({"aggregate": 1.0}, 3 * 2),
        ({"evaluate": 1.0}, (2 + 4 + 4 + 4) / 2 * 2),  # the participants, then all in two rounds, and all at the end
    ],
)
def test_an_estimate_by_a_round_counts_all_that_a_run_does(tmp_path, monkeypatch, spent, seconds):
    a_round(monkeypatch, **{"train": 0.0, "encode": 0.0, "aggregate": 0.0, "evaluate": 0.0, **spent})
    assert training_samples(one()) == pytest.approx(96 * 0.8 / 4 * 2 * 2 * 3)
    guess = Estimator(tmp_path, "cpu").estimate(one(seeds=(0, 1)))
    assert guess.source == "a timed round"
    assert guess.seconds == pytest.approx(seconds)


def test_an_estimate_is_drawn_from_as_many_seeds_as_one_if_there_are_such(tmp_path):
    cell = measure(one(), tmp_path)[0]
    for seed, together, seconds in ((0, 1, 10.0), (1, 3, 12.0), (2, 3, 12.0), (3, 3, 12.0)):
        told = {"seed": seed, "together": together, "seconds": {"train": seconds}, "wall_seconds": seconds}
        write_cell(tmp_path, cell.model_copy(update=told))
    clock = Estimator(tmp_path, "cpu")
    assert clock.estimate(one(seeds=(4,))).seconds == pytest.approx(10, rel=0.1)
    assert clock.estimate(one(seeds=(4, 5, 6))).seconds == pytest.approx(12, rel=0.1)


def test_an_estimate_is_drawn_from_cells_of_this_device_or_from_a_round(tmp_path, monkeypatch):
    a_round(monkeypatch, train=1.0, encode=0.0, aggregate=0.0, evaluate=0.0)
    cell = measure(one(), tmp_path)[0]
    slow = cell.model_copy(update={"seconds": {"train": 50.0}, "wall_seconds": 60.0})
    write_cell(tmp_path, slow)
    clock = Estimator(tmp_path, "cpu")
    assert clock.estimate(one(seeds=(1,))).source == "its other seeds"
    assert clock.estimate(one(seeds=(1,))).seconds == pytest.approx(60, rel=0.1)
    assert clock.estimate(replace(one(seeds=(1,)), setting="other-n4")).source == "other cells of the method"
    assert clock.estimate(one("standalone")).source == "a timed round"
    write_cell(tmp_path, slow.model_copy(update={"device": "another"}))
    assert Estimator(tmp_path, "cpu").estimate(one()).source == "a timed round"
    assert json.loads(cell_path(tmp_path, *cell.key).read_text())["device"] == "another"
    assert read_cell(cell_path(tmp_path, *cell.key)).device == "another"

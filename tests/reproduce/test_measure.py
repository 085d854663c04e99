"""What is missing is measured, what is measured is not, and a stop loses nothing."""

import json
from dataclasses import replace

import pytest
from tiny import tiny_recipe

import fedmrl
from fedmrl.errors import InterruptedRun
from fedmrl.reproduce import measure as module
from fedmrl.reproduce.cells import file_of, read_cell, read_cells, write_cell
from fedmrl.reproduce.experiments import Wanted
from fedmrl.reproduce.measure import Clock, measure, measure_all, missing, samples_of


@pytest.fixture(autouse=True)
def own_data(monkeypatch):
    """The tiny recipes' own file, in the place of data by name."""
    monkeypatch.setattr(module, "_data", lambda name: None)
    monkeypatch.setitem(module._SAMPLES, "arrays", 96)


def one(method="fedmrl", seeds=(0,), **settings):
    return Wanted("tiny-n4", method, tiny_recipe(method, **settings), seeds)


def test_each_seed_gives_the_cell_that_it_gives_alone(tmp_path):
    together = measure(one(seeds=(0, 3)), tmp_path)
    alone = fedmrl.run(tiny_recipe("fedmrl", seed=3))
    assert [cell.seed for cell in together] == [0, 3]
    assert together[1].accuracy == alone.summary["accuracy"]
    assert read_cells(tmp_path) == together
    assert together[0].command == "fedmrl reproduce tiny-n4/fedmrl --seeds 0,3"
    assert together[0].together == 2
    assert [path.name for path in tmp_path.iterdir()] == ["cells"], "nothing else is left behind"


def test_what_is_measured_is_skipped_unless_its_recipe_has_changed(tmp_path):
    wanted = [one(seeds=(0, 1)), one("standalone")]
    measure(one(seeds=(0,)), tmp_path)
    assert missing(wanted, tmp_path) == [one(seeds=(1,)), one("standalone")]
    assert missing([one(seeds=(0,), training__lr=0.01)], tmp_path) == [one(seeds=(0,), training__lr=0.01)]


def test_a_run_that_was_stopped_goes_on_and_ends_where_it_would_have_ended(tmp_path):
    whole = measure(one(), tmp_path / "whole")[0]

    class Stops:
        def __call__(self, wanted):
            return self

        def __enter__(self):
            return self.stop

        def __exit__(self, *_):
            return False

        def stop(self, record):
            if record["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        measure(one(), tmp_path / "parts", watch=Stops())
    assert (tmp_path / "parts" / "running" / "tiny-n4" / "fedmrl-seed-0" / "rounds.jsonl").exists()
    assert not read_cells(tmp_path / "parts")
    parts = measure(one(), tmp_path / "parts")[0]
    assert parts.accuracy == whole.accuracy
    assert parts.curves == whole.curves


def test_a_run_that_was_stopped_under_another_recipe_starts_anew(tmp_path):
    left = tmp_path / "running" / "tiny-n4" / "fedmrl-seed-0"
    fedmrl.run(tiny_recipe("fedmrl", rounds=1), out=left)
    cell = measure(one(), tmp_path)[0]
    assert cell.accuracy == fedmrl.run(tiny_recipe("fedmrl")).summary["accuracy"]


def test_a_method_that_diverges_is_a_cell_too(tmp_path):
    cell = measure(one(training__lr=1e30, training__precision="fp32"), tmp_path)[0]
    assert cell.status == "diverged"
    assert cell.diverged["round"] == 1
    assert cell.device
    assert not missing([one(training__lr=1e30, training__precision="fp32")], tmp_path), "it is not tried again"


def test_all_are_measured_one_after_another_with_a_line_for_each(tmp_path):
    lines = list(measure_all([one(), one("standalone")], tmp_path, jobs=1, quick=False, device="cpu", engine="auto"))
    assert [line.split(":")[0] for line in lines] == ["tiny-n4/fedmrl", "tiny-n4/standalone"]
    assert lines[1].endswith("0 s left for the others")
    assert len(read_cells(tmp_path)) == 2


def test_an_estimate_is_drawn_from_cells_of_this_device_or_from_a_round(tmp_path, monkeypatch):
    timed = []
    monkeypatch.setattr("fedmrl.bench.measure", lambda *a, **k: timed.append(k) or {"rows": [{"samples_per_second": 100.0}]})
    assert samples_of(one()) == pytest.approx(96 * 0.8 / 4 * 2 * 2 * 3)  # samples of a client, participants, epochs, rounds
    guess = Clock(tmp_path, "cpu").estimate(one(seeds=(0, 1)))
    assert guess.source == "a round, timed"
    assert guess.seconds == pytest.approx(2 * samples_of(one()) / 100)
    cell = measure(one(), tmp_path)[0]
    slow = cell.model_copy(update={"seconds": {"train": 50.0}, "wall_seconds": 60.0})
    write_cell(tmp_path, slow)
    clock = Clock(tmp_path, "cpu")
    assert clock.estimate(one(seeds=(1,))).source == "its other seeds"
    assert clock.estimate(one(seeds=(1,))).seconds == pytest.approx(60, rel=0.1)
    assert clock.estimate(replace(one(seeds=(1,)), setting="other-n4")).source == "other cells of the method"
    assert clock.estimate(one("standalone")).source == "a round, timed"
    write_cell(tmp_path, slow.model_copy(update={"device": "another"}))
    assert Clock(tmp_path, "cpu").estimate(one()).source == "a round, timed"
    assert json.loads(file_of(tmp_path, *cell.key).read_text())["device"] == "another"
    assert read_cell(file_of(tmp_path, *cell.key)).device == "another"

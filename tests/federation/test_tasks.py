"""Whole runs as tasks of a Ray cluster give what they give one after another."""

import importlib.util
import math
import os
import time

import pytest
import torch
from tiny import tiny_recipe

import fedmrl
from fedmrl.errors import UserError
from fedmrl.federation.tasks import run_tasks
from fedmrl.reproduce import measure as module
from fedmrl.reproduce.cells import read_cells
from fedmrl.reproduce.experiments import SCALES, RunSpec
from fedmrl.reproduce.measure import measure, measure_all
from fedmrl.results import RunResult

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed; make test-ray does it")
PLACES = {"device", "seconds", "wall_seconds", "cpu_seconds"}


@pytest.fixture(scope="module")
def two_cpus():
    import ray

    ray.shutdown()  # another module's cluster
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 1024**2, log_to_driver=False)
    yield
    ray.shutdown()


def numbers(cells):
    return [cell.model_dump(exclude=PLACES) for cell in cells]


@pytest.mark.slow_ray
@needs_ray
def test_cells_from_a_cluster_are_those_from_one_machine(two_cpus, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_data", lambda name: None)
    monkeypatch.setitem(module._SAMPLES, "arrays", 96)
    specs = [RunSpec("tiny-n4", method, tiny_recipe(method), (0, 1)) for method in ("fedmrl", "fedkd")]
    lines = list(measure_all(specs, tmp_path / "ray", jobs=1, scale=SCALES["quick"], device="auto", engine="auto", ray=True))
    assert {line.name for line in lines} == {one.label for one in specs} and lines[-1].seconds_left == 0
    for one in specs:
        measure(one, tmp_path / "here", scale=SCALES["quick"])
    assert torch.get_num_threads() == 1
    assert numbers(read_cells(tmp_path / "ray")) == numbers(read_cells(tmp_path / "here"))


@pytest.mark.slow_ray
@needs_ray
def test_a_failure_is_told_and_a_mistake_or_the_time_ends_all(two_cpus):
    def divided(one, other):  # a local function is sent to nodes that do not have this file
        if isinstance(one, str):
            raise UserError(f"{one} is not a number")
        return one / other

    ends = {done.name: done for done in run_tasks(divided, {"good": (4, 2), "bad": (4, 0)}, math.inf)}
    assert ends["good"].value == 2 and ends["bad"].value is None and "division by zero" in ends["bad"].failure
    with pytest.raises(UserError, match="not a number"):
        list(run_tasks(divided, {"one": ("x", 1)}, math.inf))
    begun = time.monotonic()
    assert list(run_tasks(os.system, {"long": ("sleep 60",)}, begun + 1)) == []
    assert time.monotonic() - begun < 30


def without_places(result):
    return result.model_dump(exclude=PLACES | {"folder", "store", "together", "records"}), [
        record.model_dump(exclude={"seconds"}) for record in result.records
    ]


@pytest.mark.slow_ray
@needs_ray
def test_a_comparison_on_a_cluster_is_that_of_one_machine(two_cpus, tmp_path):
    recipes = {name: tiny_recipe(name, rounds=2) for name in ("fedmrl", "fd")}
    lines = []
    ours = fedmrl.compare(recipes, seeds=[0, 1], out=tmp_path / "c", ray=True, on_notice=lines.append)
    here = fedmrl.compare(recipes, seeds=[0, 1])
    assert {"fedmrl: done", "fd: done"} <= set(lines)
    for name in recipes:
        assert [without_places(one) for one in ours[name]] == [without_places(one) for one in here[name]]
    assert (tmp_path / "c" / "comparison.json").exists() and ours[name][0].device.endswith(" 1 threads")


@pytest.mark.slow_ray
@needs_ray
def test_seeds_on_a_cluster_have_folders_as_on_one_machine(two_cpus, program, tmp_path):
    (tmp_path / "recipe.toml").write_text(tiny_recipe(rounds=2).to_toml())
    code, _, said = program("run", tmp_path / "recipe.toml", "--seeds", "0,1", "--ray", "--out", tmp_path / "runs")
    assert code == 0 and "seed 0: done" in said and "seed 1: done" in said
    results = [RunResult.read(tmp_path / "runs" / f"seed-{seed}") for seed in (0, 1)]
    here = fedmrl.run_seeds(tiny_recipe(rounds=2), [0, 1])
    assert [without_places(one) for one in results] == [without_places(one) for one in here]
    assert (tmp_path / "runs" / "seed-1" / "checkpoint" / "state.json").exists()


@pytest.fixture
def program(fedmrl):
    """The command line, under a name that leaves the package its own."""
    return fedmrl


def test_ray_goes_without_what_it_decides_itself(program):
    for command in (
        ("reproduce", "inference", "--quick", "--ray", "--jobs", "2"),
        ("run", "quickstart", "--ray", "--seeds", "0,1"),
    ):
        code, _, said = program(*command, "--engine", "batched")
        assert code == 2 and "leave out" in said


def test_one_seed_is_not_spread_over_a_cluster(program, tmp_path):
    code, _, said = program("run", "quickstart", "--ray")
    assert code == 2 and "--ray spreads several seeds over a cluster; name them with --seeds, or give --engine ray" in said
    assert not list(tmp_path.iterdir())


def test_a_comparison_on_a_cluster_needs_a_folder():
    with pytest.raises(UserError, match="ray needs the comparison's folder; name it as out"):
        fedmrl.compare("quickstart", ["fd"], ray=True)

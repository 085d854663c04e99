"""Runs as tasks of a Ray cluster give the cells that they give one after another."""

import importlib.util
import math
import os
import time

import pytest
import torch
from tiny import tiny_recipe

from fedmrl.errors import UserError
from fedmrl.reproduce import measure as module
from fedmrl.reproduce.cells import read_cells
from fedmrl.reproduce.experiments import SCALES, RunSpec
from fedmrl.reproduce.measure import measure, measure_all
from fedmrl.reproduce.tasks import run_tasks

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


def test_ray_goes_without_what_it_decides_itself(fedmrl):
    code, _, said = fedmrl("reproduce", "inference", "--quick", "--ray", "--jobs", "2")
    assert code == 2 and "leave out --jobs" in said

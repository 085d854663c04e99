"""Running of missing cells, which can be interrupted and resumed; each cell is written as soon as its run ends."""

import json
import math
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedmrl.config import Recipe, parse_recipe
from fedmrl.data import Dataset, sources
from fedmrl.errors import InterruptedRun, UserError
from fedmrl.federation.launch import pick_device, run_seeds
from fedmrl.federation.server import OnRound
from fedmrl.federation.setup import schedule
from fedmrl.federation.summary import device_name
from fedmrl.federation.tasks import run_tasks
from fedmrl.reproduce.cells import Cell, cell_path, make_cell, read_cell, read_cells, recipe_hash, write_cell
from fedmrl.reproduce.experiments import PAPER, RunSpec, Scale
from fedmrl.reproduce.processes import run_parallel
from fedmrl.results import Record

_SAMPLES = {"digits": 1_797, "cifar10": 60_000, "cifar100": 60_000}  # so that an estimate needs no data
Watch = Callable[[RunSpec], AbstractContextManager[OnRound]]


@dataclass(frozen=True)
class Estimate:
    """The estimated duration of a run, and what the estimate is based on."""

    seconds: float
    source: str


@dataclass(frozen=True)
class RunProgress:
    """A run that ended: its result as text, and the estimated time for the rest."""

    name: str
    said: str
    seconds_left: float


def missing_runs(specs: Iterable[RunSpec], folder: Path) -> list[RunSpec]:
    """The runs with missing seeds, reduced to those; a cell of another recipe does not count."""
    left = []
    for one in specs:
        there = {cell.seed for cell in measured_cells([one], folder)}
        if seeds := tuple(seed for seed in one.seeds if seed not in there):
            left.append(replace(one, seeds=seeds))
    return left


def measured_cells(specs: Iterable[RunSpec], folder: Path) -> list[Cell]:
    """The existing cells of these runs."""
    asked = [(cell_path(folder, one.setting, one.variant, seed), one.recipe) for one in specs for seed in one.seeds]
    found = [(read_cell(path), recipe) for path, recipe in asked if path.is_file()]
    return [cell for cell, recipe in found if cell.matches(recipe)]


def delete_cells(specs: Iterable[RunSpec], folder: Path) -> None:
    """Deletes the existing cells of these runs."""
    for one in specs:
        for seed in one.seeds:
            cell_path(folder, one.setting, one.variant, seed).unlink(missing_ok=True)


def measure(
    one: RunSpec,
    folder: Path,
    *,
    scale: Scale = PAPER,
    device: str = "auto",
    engine: str = "auto",
    watch: Watch | None = None,
    at_once: int = 1,
    data: Dataset | None = None,
) -> list[Cell]:
    """Runs all seeds together, resuming an interrupted run, and writes a cell for each seed."""
    runs = [_run_folder(one, seed, folder) for seed in one.seeds]
    resume = any((path / "config.toml").exists() for path in runs)
    with watch(one) if watch else nullcontext() as on_round:
        outcomes = run_seeds(
            one.recipe, one.seeds, outs=runs, resume=resume, device=device, engine=engine,
            data=data or _data_of(one), keep=False, on_round=on_round,
            on_notice=lambda _: None,
        )  # fmt: skip
    command = f"fedmrl reproduce {one.name} --seeds {','.join(map(str, one.seeds))}{scale.option}"
    cells = []
    for path, outcome in zip(runs, outcomes, strict=True):
        recipe = one.recipe.model_copy(update={"seed": outcome.seed})
        cells.append(make_cell(one.setting, one.variant, recipe, outcome, {"command": command, "at_once": at_once}))
        write_cell(folder, cells[-1])
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # other runs still use the folder
        for parent in runs[0].parents[:2]:
            parent.rmdir()
    return cells


def measure_all(
    left: Sequence[RunSpec],
    folder: Path,
    *,
    jobs: int,
    scale: Scale,
    device: str,
    engine: str,
    watch: Watch | None = None,
    until: float = math.inf,
    at_once: int = 1,
    ray: bool = False,
) -> Generator[RunProgress, None, None]:
    """Performs many runs, up to `jobs` in parallel, and yields the progress after each; with `ray`, on the CPUs of a cluster.

    At `until` (monotonic clock), running ones are interrupted so that they can be resumed, and no others start. `at_once` is
    written to the cells: the number of runs that share the device, including those of other processes.
    """

    def alone(one: RunSpec) -> list[Cell]:
        stopping = _with_deadline(watch, until)
        return measure(one, folder, scale=scale, device=device, engine=engine, watch=stopping, at_once=at_once)

    started, todo, done = time.monotonic(), sum(map(_work, left)), 0.0
    if ray:
        ends = _in_tasks(left, folder, until, scale)
    elif jobs == 1:
        ends = _one_by_one(left, until, alone)
    else:
        options = ["--out", str(folder), "--device", device, "--engine", engine, "--scale", scale.name]
        options += ["--at-once", str(min(jobs, len(left)))]
        ends = _in_processes(left, folder, jobs, until, options)
    for one, said in ends:
        done += _work(one)
        rest = (time.monotonic() - started) / done * (todo - done)
        yield RunProgress(one.label, said, rest)


def _work(one: RunSpec) -> float:
    return training_samples(one) * len(one.seeds)


def _said(cells: Iterable[Cell]) -> str:
    found = [cell.measured("fair") for cell in cells]
    return ", ".join("diverged" if accuracy is None else f"{accuracy:.1%}" for accuracy in found)


def _one_by_one(left: Sequence[RunSpec], until: float, run: Callable[[RunSpec], list[Cell]]) -> Iterator[tuple[RunSpec, str]]:
    for one in left:
        if time.monotonic() >= until:
            return
        try:
            yield one, _said(run(one))
        except InterruptedRun:
            if time.monotonic() < until:
                raise
            return


def _with_deadline(watch: Watch | None, until: float) -> Watch:
    """Wraps `watch` to interrupt a run after the first round past `until`."""

    @contextmanager
    def watching(one: RunSpec) -> Iterator[OnRound]:
        with watch(one) if watch else nullcontext() as heard:

            def on_round(record: Record) -> None:
                if heard:
                    heard(record)
                if time.monotonic() >= until:
                    raise KeyboardInterrupt

            yield on_round

    return watching


def _in_processes(
    left: Sequence[RunSpec], folder: Path, jobs: int, until: float, options: Sequence[str]
) -> Iterator[tuple[RunSpec, str]]:
    named = {one.label: one for one in left}
    commands = {
        name: ["reproduce", one.name, "--seeds", ",".join(map(str, one.seeds)), "--no-report", *options]
        for name, one in named.items()
    }
    with closing(run_parallel(commands, jobs, until)) as ends:
        for ended in ends:
            one = named[ended.name]
            if ended.code == 2:  # a user's mistake, which would also end all other runs
                raise UserError(ended.said)
            cells = [read_cell(cell_path(folder, one.setting, one.variant, seed)) for seed in one.seeds if not ended.code]
            yield one, _said(cells) if cells else f"failed ({ended.said})"


def _in_tasks(left: Sequence[RunSpec], folder: Path, until: float, scale: Scale) -> Iterator[tuple[RunSpec, str]]:
    """Each on a CPU of the cluster. What is stopped there begins anew, as its folder was on its node."""
    named = {one.label: one for one in left}
    with closing(run_tasks(_cells_of, {name: (one, scale, _data_of(one)) for name, one in named.items()}, until)) as ends:
        for done in ends:
            for cell in done.value or ():
                write_cell(folder, cell)
            yield named[done.name], _said(done.value) if done.value else f"failed ({done.failure})"


def _cells_of(one: RunSpec, scale: Scale, data: Dataset) -> list[Cell]:
    """The cells of a run in a task."""
    with TemporaryDirectory(prefix="fedmrl-") as folder:
        return measure(one, Path(folder), scale=scale, device="cpu", data=data)


def _run_folder(one: RunSpec, seed: int, folder: Path) -> Path:
    """The folder of an unfinished run; deletes those of outdated recipes, which cannot be resumed."""
    name = f"{one.variant}-seed-{seed}"
    own = folder / "running" / one.setting / f"{name}-{recipe_hash(one.recipe)}"
    for other in own.parent.glob(f"{name}-*"):
        if other != own:
            shutil.rmtree(other)
    return own


def _data_of(one: RunSpec) -> Dataset:
    return _data(json.dumps(one.recipe.resolved()["data"]))


@cache
def _data(table: str) -> Dataset:
    """Loads the dataset of a `[data]` table, given as JSON so that it can be cached."""
    return sources.load(parse_recipe({"data": json.loads(table)}, "data").data)


class Estimator:
    """Estimates the duration of runs on this device, from cells measured on it or else by timing a round."""

    def __init__(self, folder: Path, device: str = "auto", tell: Callable[[str], None] = lambda _: None) -> None:
        self._tell = tell
        self.place = pick_device(device)
        self.device = device_name(self.place)
        self._cells = [cell for cell in read_cells(folder) if cell.device == self.device and cell.status == "finished"]
        self._timed: dict[str, _RoundTimes] = {}

    def estimate(self, one: RunSpec) -> Estimate:
        """Estimates a run with all its seeds, preferably from cells with as many seeds: the more, the faster each."""
        same_cell = [cell for cell in self._cells if (cell.setting, cell.variant) == (one.setting, one.variant)]
        same_method = [cell for cell in self._cells if cell.method == one.recipe.method.name]
        for cells, source in ((same_cell, "its other seeds"), (same_method, "other cells of the method")):
            if cells:
                alike = [cell for cell in cells if cell.together == len(one.seeds)] or cells
                rate = float(np.median([_samples_a_second(cell) for cell in alike]))
                return Estimate(self._start + training_samples(one) * len(one.seeds) / rate, source)
        return Estimate(self._pace(one).seconds(one), "a timed round")

    @property
    def _start(self) -> float:
        """The seconds of a run outside its rounds."""
        return float(np.median([max(0.0, cell.wall_seconds - sum(cell.seconds.values())) for cell in self._cells]))

    def _pace(self, one: RunSpec) -> "_RoundTimes":
        """Times a round of the method with one epoch, once for each method."""
        from fedmrl.bench import measure as timed

        method = one.recipe.method.name
        if method not in self._timed:
            self._tell(f"timing a round of {one.recipe.method.title} …")
            training = one.recipe.training.model_copy(update={"epochs": 1})
            way = "captured" if self.place.type == "cuda" else "reference"
            recipe = one.recipe.model_copy(update={"training": training})
            result = timed(
                recipe, one.name, device=self.place.type, ways=[way], precisions=[training.precision], fused=1, repeats=1,
                on_noise=recipe.data.name != "digits",
            )  # fmt: skip
            self._timed[method] = _RoundTimes.of(result["rows"][0], recipe)
        return self._timed[method]


@dataclass(frozen=True)
class _RoundTimes:
    """The duration of a round's parts, in seconds."""

    start: float
    sample: float
    """Training on one sample."""
    upload: float
    """Encoding and aggregating one client's upload."""
    tested: float
    """Predicting one test sample."""

    @classmethod
    def of(cls, timed: Mapping[str, Any], recipe: Recipe) -> "_RoundTimes":
        seconds, clients = timed["seconds"], timed["clients"]
        train, test = _samples_a_client(recipe)
        return cls(
            max(0.0, timed["seconds_to_start"] - seconds["train"] - seconds["evaluate"]),
            (seconds["train"] - seconds["encode"]) / (clients * train * recipe.training.epochs),
            (seconds["encode"] + seconds["aggregate"]) / clients,
            seconds["evaluate"] / (clients * test),
        )

    def seconds(self, one: RunSpec) -> float:
        """The duration of a run with all its seeds."""
        recipe, who = one.recipe, schedule(one.recipe)
        _, test = _samples_a_client(recipe)
        of_all = {*range(recipe.evaluation.every, recipe.rounds, recipe.evaluation.every), recipe.rounds}
        tested = sum(recipe.clients if number in of_all else len(clients) for number, clients in enumerate(who, start=1))
        each = training_samples(one) * self.sample + sum(map(len, who)) * self.upload
        return self.start + len(one.seeds) * (each + (tested + recipe.clients) * test * self.tested)


def _samples_a_client(recipe: Recipe) -> tuple[float, float]:
    """The average numbers of training and test samples of a client."""
    each = _SAMPLES[recipe.data.name] / recipe.clients
    return each * (1 - recipe.partition.test_share), each * recipe.partition.test_share


def training_samples(one: RunSpec) -> float:
    """The number of samples that one seed trains on, over all rounds."""
    return sum(map(len, schedule(one.recipe))) * one.recipe.training.epochs * _samples_a_client(one.recipe)[0]


def _samples_a_second(cell: Cell) -> float:
    """The device's training speed, over all runs that shared it."""
    recipe, clients = cell.recipe, cell.clients
    assert clients is not None
    turns = max(1, round(float(recipe["participation"]) * recipe["clients"])) * int(recipe["rounds"])
    samples: float = turns * int(recipe["training"]["epochs"]) * sum(clients.train_samples) / len(clients.train_samples)
    return samples * cell.together * cell.at_once / max(sum(cell.seconds.values()), 1e-9)

"""Measuring what is missing: runs that survive being stopped, and a cell written for each as soon as it is there."""

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
from fedmrl.reproduce.cells import Cell, cell_of, file_of, hash_of, read_cell, read_cells, write_cell
from fedmrl.reproduce.experiments import PAPER, RunSpec, Scale
from fedmrl.reproduce.processes import side_by_side
from fedmrl.results import Record

_SAMPLES = {"digits": 1_797, "cifar10": 60_000, "cifar100": 60_000}  # so that an estimate needs no data
Watch = Callable[[RunSpec], AbstractContextManager[OnRound]]


@dataclass(frozen=True)
class Estimate:
    """How long a run should take here, and what that is drawn from."""

    seconds: float
    source: str


@dataclass(frozen=True)
class Measured:
    """A run that ended: what it came to, and how long the others should still take."""

    name: str
    said: str
    seconds_left: float


def missing(specs: Iterable[RunSpec], folder: Path) -> list[RunSpec]:
    """What is not measured yet, each with the seeds that are still to be run. A cell of another recipe does not count."""
    left = []
    for one in specs:
        there = {cell.seed for cell in measured([one], folder)}
        if seeds := tuple(seed for seed in one.seeds if seed not in there):
            left.append(replace(one, seeds=seeds))
    return left


def measured(specs: Iterable[RunSpec], folder: Path) -> list[Cell]:
    """The cells that there are already."""
    asked = [(file_of(folder, one.setting, one.variant, seed), one.recipe) for one in specs for seed in one.seeds]
    found = [(read_cell(path), recipe) for path, recipe in asked if path.is_file()]
    return [cell for cell, recipe in found if cell.is_of(recipe)]


def forget(specs: Iterable[RunSpec], folder: Path) -> None:
    """Delete the cells that there are, so that they are measured anew."""
    for one in specs:
        for seed in one.seeds:
            file_of(folder, one.setting, one.variant, seed).unlink(missing_ok=True)


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
    """Run it with its seeds as one, and write a cell for each. If it was stopped before, it goes on from there."""
    runs = [_running(one, seed, folder) for seed in one.seeds]
    resume = any((path / "config.toml").exists() for path in runs)
    with watch(one) if watch else nullcontext() as on_round:
        outcomes = run_seeds(
            one.recipe, one.seeds, outs=runs, resume=resume, device=device, engine=engine,
            data=data or _data_of(one), keep=False, on_round=on_round,
        )  # fmt: skip
    command = f"fedmrl reproduce {one.name} --seeds {','.join(map(str, one.seeds))}{scale.option}"
    cells = []
    for path, outcome in zip(runs, outcomes, strict=True):
        recipe = one.recipe.model_copy(update={"seed": outcome.seed})
        cells.append(cell_of(one.setting, one.variant, recipe, outcome, {"command": command, "at_once": at_once}))
        write_cell(folder, cells[-1])
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # others are running there
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
) -> Generator[Measured, None, None]:
    """The same for many, telling of each as it ends. With several at once, one keeps the device busy while another starts.

    With `ray`, each is a task on a CPU of a Ray cluster.

    At `until`, by the monotonic clock, what runs is stopped so that it can go on, and nothing more is started. `at_once` says
    how many run at the same time as seen from outside, if these are some of many.
    """

    def alone(one: RunSpec) -> list[Cell]:
        stopping = _stopping(watch, until)
        return measure(one, folder, scale=scale, device=device, engine=engine, watch=stopping, at_once=at_once)

    started, todo, done = time.monotonic(), sum(map(_work, left)), 0.0
    if ray:
        ends = _in_tasks(left, folder, until, scale)
    elif jobs == 1:
        ends = _in_turn(left, until, alone)
    else:
        options = ["--out", str(folder), "--device", device, "--engine", engine, "--scale", scale.name]
        options += ["--at-once", str(min(jobs, len(left)))]
        ends = _in_processes(left, folder, jobs, until, options)
    for one, said in ends:
        done += _work(one)
        rest = (time.monotonic() - started) / done * (todo - done)
        yield Measured(one.label, said, rest)


def _work(one: RunSpec) -> float:
    return samples_of(one) * len(one.seeds)


def _said(cells: Iterable[Cell]) -> str:
    found = [cell.measured("fair") for cell in cells]
    return ", ".join("diverged" if accuracy is None else f"{accuracy:.1%}" for accuracy in found)


def _in_turn(left: Sequence[RunSpec], until: float, run: Callable[[RunSpec], list[Cell]]) -> Iterator[tuple[RunSpec, str]]:
    for one in left:
        if time.monotonic() >= until:
            return
        try:
            yield one, _said(run(one))
        except InterruptedRun:
            if time.monotonic() < until:
                raise
            return


def _stopping(watch: Watch | None, until: float) -> Watch:
    """The same, and when the time is up a run is stopped after a whole round."""

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
    with closing(side_by_side(commands, jobs, until)) as ends:
        for ended in ends:
            one = named[ended.name]
            if ended.code == 2:  # a user's mistake, and so one that all the others would meet too
                raise UserError(ended.said)
            cells = [read_cell(file_of(folder, one.setting, one.variant, seed)) for seed in one.seeds if not ended.code]
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


def _running(one: RunSpec, seed: int, folder: Path) -> Path:
    """Where a run lies until it is over. One that would give other numbers cannot go on, and is deleted."""
    name = f"{one.variant}-seed-{seed}"
    own = folder / "running" / one.setting / f"{name}-{hash_of(one.recipe)}"
    for other in own.parent.glob(f"{name}-*"):
        if other != own:
            shutil.rmtree(other)
    return own


def _data_of(one: RunSpec) -> Dataset:
    return _data(json.dumps(one.recipe.resolved()["data"]))


@cache
def _data(table: str) -> Dataset:
    """What a recipe's `[data]` table names, as JSON; loaded once, however many runs use it."""
    return sources.load(parse_recipe({"data": json.loads(table)}, "data").data)


class Clock:
    """Says how long runs should take on this device: by cells that were measured on it, else by a round that it times."""

    def __init__(self, folder: Path, device: str = "auto", tell: Callable[[str], None] = lambda _: None) -> None:
        self._tell = tell
        self.place = pick_device(device)
        self.device = device_name(self.place)
        self._cells = [cell for cell in read_cells(folder) if cell.device == self.device and cell.status == "finished"]
        self._timed: dict[str, _Pace] = {}

    def estimate(self, one: RunSpec) -> Estimate:
        """Of all its seeds. Cells of as many seeds as one count before others: the more of them, the faster each."""
        same_cell = [cell for cell in self._cells if (cell.setting, cell.variant) == (one.setting, one.variant)]
        same_method = [cell for cell in self._cells if cell.method == one.recipe.method.name]
        for cells, source in ((same_cell, "its other seeds"), (same_method, "other cells of the method")):
            if cells:
                alike = [cell for cell in cells if cell.together == len(one.seeds)] or cells
                rate = float(np.median([_samples_a_second(cell) for cell in alike]))
                return Estimate(self._start + samples_of(one) * len(one.seeds) / rate, source)
        return Estimate(self._pace(one).seconds(one), "a round, timed")

    @property
    def _start(self) -> float:
        """Seconds of a run that are not in its rounds."""
        return float(np.median([max(0.0, cell.wall_seconds - sum(cell.seconds.values())) for cell in self._cells]))

    def _pace(self, one: RunSpec) -> "_Pace":
        """Of the method, by a round of an epoch of whichever of its runs is asked about first."""
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
            self._timed[method] = _Pace.of(result["rows"][0], recipe)
        return self._timed[method]


@dataclass(frozen=True)
class _Pace:
    """Seconds that things take."""

    start: float
    sample: float
    """To train on it once."""
    upload: float
    """To encode a client's, and to aggregate it."""
    tested: float
    """To predict a test sample."""

    @classmethod
    def of(cls, timed: Mapping[str, Any], recipe: Recipe) -> "_Pace":
        seconds, clients = timed["seconds"], timed["clients"]
        train, test = _samples_a_client(recipe)
        return cls(
            max(0.0, timed["seconds_to_start"] - seconds["train"] - seconds["evaluate"]),
            (seconds["train"] - seconds["encode"]) / (clients * train * recipe.training.epochs),
            (seconds["encode"] + seconds["aggregate"]) / clients,
            seconds["evaluate"] / (clients * test),
        )

    def seconds(self, one: RunSpec) -> float:
        """Of all the seeds of a run."""
        recipe, who = one.recipe, schedule(one.recipe)
        _, test = _samples_a_client(recipe)
        of_all = {*range(recipe.evaluation.every, recipe.rounds, recipe.evaluation.every), recipe.rounds}
        tested = sum(recipe.clients if number in of_all else len(clients) for number, clients in enumerate(who, start=1))
        each = samples_of(one) * self.sample + sum(map(len, who)) * self.upload
        return self.start + len(one.seeds) * (each + (tested + recipe.clients) * test * self.tested)


def _samples_a_client(recipe: Recipe) -> tuple[float, float]:
    """To train on and to test with, on average."""
    each = _SAMPLES[recipe.data.name] / recipe.clients
    return each * (1 - recipe.partition.test_share), each * recipe.partition.test_share


def samples_of(one: RunSpec) -> float:
    """How many samples one seed trains on, from first round to last."""
    return sum(map(len, schedule(one.recipe))) * one.recipe.training.epochs * _samples_a_client(one.recipe)[0]


def _samples_a_second(cell: Cell) -> float:
    """Of the device, whatever shared it."""
    recipe, clients = cell.recipe, cell.clients
    assert clients is not None
    turns = max(1, round(float(recipe["participation"]) * recipe["clients"])) * int(recipe["rounds"])
    samples: float = turns * int(recipe["training"]["epochs"]) * sum(clients.train_samples) / len(clients.train_samples)
    return samples * cell.together * cell.at_once / max(sum(cell.seconds.values()), 1e-9)

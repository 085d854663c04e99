"""Benchmarks of a round: speed, time by stage, and deviation from the reference engine, for each way of running it."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedmrl.config import Recipe
from fedmrl.data import Dataset, sources
from fedmrl.engines import BatchedEngine, Engine, ReferenceEngine, Setting, Trained, Turn
from fedmrl.engines.program import Trainer
from fedmrl.errors import UserError
from fedmrl.federation.launch import pick_device
from fedmrl.federation.setup import prepare, schedule
from fedmrl.federation.summary import device_name, versions
from fedmrl.messages import Tensors, Upload, copy
from fedmrl.methods import Round

WAYS = ("reference", "eager", "captured", "compiled")
PRECISIONS = ("fp32", "tf32", "bf16", "fp64")
BENCH_COLUMNS = ("way", "samples/s", "round", "train", "evaluate", "error")  # as many as fit into 80 characters
_NOISE = 60_000  # images


@dataclass(frozen=True)
class _Row:
    way: str
    precision: str
    seeds: int = 1

    @property
    def label(self) -> str:
        return f"{self.way} {self.precision}" + (f" ×{self.seeds}" if self.seeds > 1 else "")


def measure(
    recipe: Recipe,
    name: str,
    *,
    device: str = "auto",
    ways: Sequence[str] | None = None,
    precisions: Sequence[str] | None = None,
    fused: int = 3,
    repeats: int = 3,
    on_noise: bool = False,
    on_row: Callable[[str], None] = lambda _: None,
    on_step: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Times the recipe's first round in each way, and returns the result as JSON data.

    A round trains (which includes `encode`), aggregates, and evaluates the participants. A row's error is the distance of its
    clients' parameters to the reference engine's in 32 bits, relative to how far those moved. `on_step(label, done, total)`
    is called with the rounds done so far.
    """
    place = pick_device(device)
    data = noise(recipe) if on_noise else sources.load(recipe.data)
    rows = list(_rows(place, recipe, ways, precisions, fused))
    done, total = 0, 1 + sum(row.seeds * (1 + repeats) for row in rows)

    def passed(row: _Row) -> None:
        nonlocal done
        done += row.seeds
        on_step(row.label, done, total)

    on_step(rows[0].label, 0, total)
    before = _reference_states(recipe, place, data)
    passed(replace(rows[0], seeds=1))
    measured = []
    for row in rows:
        on_row(f"{row.label}: measuring {repeats} round{'' if repeats == 1 else 's'} after one to warm up …")
        found = _measured(row, recipe, place, data, repeats, before, partial(passed, row))
        measured.append(found)
        on_row(f"{row.label}: {found['shown'][1]} samples/s, ready after {_format_seconds(found['seconds_to_start'])}")
    return {
        "recipe": name,
        "method": recipe.method.name,
        "clients": len(schedule(recipe)[0]),
        "batch_size": recipe.training.batch_size,
        "epochs": recipe.training.epochs,
        "noise": on_noise,
        "device": device_name(place),
        "versions": versions(),
        "rows": measured,
    }


def _rows(
    place: torch.device, recipe: Recipe, ways: Sequence[str] | None, precisions: Sequence[str] | None, fused: int
) -> Iterator[_Row]:
    for given, known, name in ((ways, WAYS, "ways"), (precisions, PRECISIONS, "precisions")):
        if given is not None and (not given or set(given) - set(known)):
            raise UserError(f"{name} is {','.join(given) or 'empty'}; choose from {', '.join(known)}")
    gpu = place.type == "cuda"
    available = ways or (WAYS if gpu else ("reference", "eager"))
    if not gpu and set(available) & {"captured", "compiled"}:
        raise UserError("ways: captured and compiled need a GPU, and this is a CPU; choose reference or eager")
    chosen = precisions or (("fp32", "tf32", "bf16") if gpu else (recipe.training.precision,))
    for way in available:
        # The last way is measured in every precision, the others in the first.
        for precision in chosen if way == available[-1] else chosen[:1]:
            yield _Row(way, precision)
    if fused > 1:
        yield _Row(available[-1], chosen[-1], fused)


def noise(recipe: Recipe) -> Dataset:
    """Random images of CIFAR's number and size, with 100 classes for CIFAR-100 and 10 otherwise."""
    classes = 100 if recipe.data.name == "cifar100" else 10
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (_NOISE, 3, 32, 32), dtype=np.uint8)
    names = tuple(map(str, range(classes)))
    return Dataset("noise", x, np.arange(_NOISE) % classes, names, _NOISE, np.full(3, 127.5), np.full(3, 73.9))


def _settings(recipe: Recipe, place: torch.device, data: Dataset, precision: str, seeds: int) -> list[Setting]:
    training = recipe.training.model_copy(update={"precision": precision})
    numbers = range(recipe.seed, recipe.seed + seeds)
    return [prepare(recipe.model_copy(update={"training": training, "seed": s}), place, data=data) for s in numbers]


def first_turns(recipe: Recipe, settings: Sequence[Setting]) -> list[Turn]:
    """The turns of each run's first round."""
    turns = []
    for run, setting in enumerate(settings):
        server = setting.server_start()
        for client in schedule(recipe.model_copy(update={"seed": setting.seed}))[0]:
            state = copy(setting.fresh_net(client).state_dict())
            turns.append(Turn(client, state, setting.method.answer(server, client, None), run=run))
    return turns


def _reference_states(recipe: Recipe, place: torch.device, data: Dataset) -> dict[str, Any]:
    precision = "fp64" if recipe.training.precision == "fp64" else "fp32"
    settings = _settings(recipe, place, data, precision, 1)
    turns = first_turns(recipe, settings)
    outcomes = ReferenceEngine(*settings).train(Round(0, recipe.rounds), turns)
    for outcome in outcomes:
        if outcome.broken:
            what = f"client {outcome.client}'s {outcome.broken}"
            raise UserError(f"{what} became NaN or infinite in the first round; try a smaller training.lr")
    pairs = zip(turns, outcomes, strict=True)
    if all(torch.equal(turn.state[name], outcome.state[name]) for turn, outcome in pairs for name in turn.state):
        raise UserError("the first round does not change any weights, so there is nothing to compare; try a larger training.lr")
    return {"from": [turn.state for turn in turns], "to": [outcome.state for outcome in outcomes]}


def _measured(
    row: _Row,
    recipe: Recipe,
    place: torch.device,
    data: Dataset,
    repeats: int,
    before: Mapping[str, Any],
    passed: Callable[[], None],
) -> dict[str, Any]:
    settings = _settings(recipe, place, data, row.precision, row.seeds)
    turns, round_ = first_turns(recipe, settings), Round(0, recipe.rounds)
    started = time.perf_counter()
    engine = _engine(row, settings)
    raw = engine.trained(round_, turns)
    outcomes = engine.encoded(raw, round_)
    modes = recipe.recorded_modes
    engine.evaluate(turns, modes)
    start = _since(started, place)
    passed()
    seconds = {
        "train": _median(lambda: engine.train(round_, turns), repeats, place, passed),
        "encode": _median(lambda: engine.encoded(raw, round_), repeats, place),
        "evaluate": _median(lambda: engine.evaluate(turns, modes), repeats, place),
        "aggregate": _median(_aggregation(settings, turns, outcomes, round_), repeats, place),
    }
    trainers = engine.trainers if isinstance(engine, BatchedEngine) else []
    if trainers:
        seconds |= _split(trainers, repeats, place)
    samples = sum(_trained_on(settings[turn.run], turn) for turn in turns)
    error = _error(outcomes[: len(before["to"])], before)
    found: dict[str, Any] = {
        "way": row.way,
        "precision": row.precision,
        "seeds": row.seeds,
        "clients": len(turns),
        "samples_per_second": samples / seconds["train"],
        "seconds_a_round": seconds["train"] + seconds["aggregate"] + seconds["evaluate"],
        "seconds": seconds,
        "seconds_to_start": start,
        "error": error,
    }
    if trainers:  # without the host's work once per round
        found["steps"] = sum(trainer.steps for trainer in trainers)
        in_steps = sum(trainer.samples for trainer in trainers)
        found["step_samples_per_second"] = in_steps / (seconds["gather"] + seconds["step"])
    spent = (_format_seconds(each) for each in (found["seconds_a_round"], seconds["train"], seconds["evaluate"]))
    found["shown"] = (row.label, f"{found['samples_per_second']:,.0f}", *spent, f"{error:.0e}")
    return found


def _trained_on(setting: Setting, turn: Turn) -> int:
    """The training samples in all phases of a client's turn."""
    subsets = setting.subsets(turn.client)
    return sum(phase.epochs * len(subsets[phase.subset]) for phase in setting.method.phases(setting.training, turn.earlier))


def _engine(row: _Row, settings: Sequence[Setting]) -> Engine:
    if row.way == "reference":
        return ReferenceEngine(*settings)
    return BatchedEngine(*settings, way=row.way)  # type: ignore[arg-type]


def _aggregation(
    settings: Sequence[Setting], turns: Sequence[Turn], outcomes: Sequence[Trained], round_: Round
) -> Callable[[], None]:
    servers = [setting.server_start() for setting in settings]
    uploads: list[list[Upload]] = [[] for _ in settings]
    for turn, outcome in zip(turns, outcomes, strict=True):
        samples = len(settings[turn.run].members[turn.client].train)
        uploads[turn.run].append(Upload(turn.client, samples, outcome.upload))

    def aggregate() -> None:
        for setting, server, own in zip(settings, servers, uploads, strict=True):
            setting.method.aggregate(server, own, round_, setting.terms.aggregation)

    return aggregate


def _split(trainers: Sequence[Trainer], repeats: int, place: torch.device) -> dict[str, float]:
    """The time of a round's steps, split into gathering batches and training on them."""
    both = sum(_median(trainer.again, repeats, place) for trainer in trainers)
    alone = sum(_median(trainer.gather_again(), repeats, place) for trainer in trainers)
    return {"gather": alone, "step": both - alone}


def _error(outcomes: Sequence[Trained], before: Mapping[str, Any]) -> float:
    def squares(one: Sequence[Tensors], two: Sequence[Tensors]) -> float:
        pairs = ((a[n].double(), b[n].double()) for a, b in zip(one, two, strict=True) for n in b)
        return float(sum((a - b).square().sum() for a, b in pairs))

    moved = squares(before["from"], before["to"])
    return math.sqrt(squares([outcome.state for outcome in outcomes], before["to"]) / moved)


def _median(work: Callable[[], object], repeats: int, place: torch.device, passed: Callable[[], None] = lambda: None) -> float:
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        found.append(_since(started, place))
        passed()
    return statistics.median(found)


def _since(started: float, place: torch.device) -> float:
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    return time.perf_counter() - started


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"

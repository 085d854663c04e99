"""Cells: one variant of a method in one setting with one seed, as a small JSON file that says all there is to know of it.

Tables, figures and the page of a reproduction are made from these files alone.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from fedmrl.config import Recipe, parse_recipe
from fedmrl.errors import UserError
from fedmrl.files import write_whole
from fedmrl.results import WHOSE, DivergedRun, Outcome, Protocol, Record, RunResult, Target, View, Whose, counted, curve
from fedmrl.schema import Part, first_problem
from fedmrl.version import NUMBERS


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Clients(_Part):
    """What each client has and how well it does at the end, in the order of clients."""

    model: list[str]
    classes: list[list[int]]
    train_samples: list[int]
    test_samples: list[int]
    rounds: list[int]
    """In how many rounds each took part."""
    own: Annotated[list[float], Field(min_length=1)]
    """Accuracy with the copy of the shared part that each trained last."""
    aggregated: list[float] | None = None
    """Accuracy with the shared part that the server has last; None where predictions do not depend on it."""

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        lists = (self.model, self.classes, self.train_samples, self.test_samples, self.rounds, self.own, self.aggregated)
        if len({len(of_each) for of_each in lists if of_each is not None}) > 1:
            raise ValueError("its lists are not of the same clients")
        return self

    def accuracy(self, protocol: Protocol) -> list[float]:
        """Each client's accuracy after the last round: of the client's own copy, or (`fair`) with what the server has."""
        return self.aggregated if protocol == "fair" and self.aggregated is not None else self.own


class Curve(_Part):
    """Accuracy by round, wherever it was measured, with what the clients hold (`own`) and with what the server has last."""

    rounds: Annotated[list[int], Field(min_length=1)]
    own: list[float]
    aggregated: list[float] | None = None

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if any(len(values) != len(self.rounds) for values in (self.own, self.aggregated) if values is not None):
            raise ValueError("it does not have a value for each of its rounds")
        return self


class Spent(_Part):
    """What all clients together had spent by the end of each round, from the first to the last."""

    turns: list[int]
    """How many times a client had taken part."""
    parameters: list[int]
    """Numbers sent and received."""
    flops: list[float]

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if not len(self.turns) == len(self.parameters) == len(self.flops):
            raise ValueError("its lists are not of the same rounds")
        return self


class _Data(Part):
    name: str


class _Training(Part):
    epochs: PositiveInt


class _Recipe(Part):
    """As far as it is read."""

    clients: PositiveInt
    rounds: PositiveInt
    participation: PositiveFloat
    data: _Data
    method: dict[str, Any]
    training: _Training


class _Accuracy(Part):
    last: float
    best: float


class _Where(Part):
    client: int
    round: int
    reason: str


def _like(shape: type[Part]) -> BeforeValidator:
    """Plain data that has the fields of this shape, and maybe more."""

    def check(plain: Any) -> Any:
        try:
            shape.model_validate(plain)
        except ValidationError as error:
            raise ValueError(first_problem(error)) from error
        return plain

    return BeforeValidator(check)


class Cell(_Part):
    """One run of a reproduction. What came out is missing where it diverged."""

    format: Literal[2] = 2
    """Counted up when the file changes so that older ones cannot be read any more."""
    numbers: int
    """`fedmrl.version.NUMBERS` when it was measured."""
    setting: str
    """The federation, such as `cifar10-n100`: dataset, clients, how data is dealt, which models."""
    variant: str
    """The method and what is changed about it, such as `fedmrl-d1-150`."""
    method: str
    title: str
    seed: int
    command: str
    recipe: Annotated[dict[str, Any], _like(_Recipe)]
    """Resolved, without its seed."""
    status: Literal["finished", "diverged"]
    device: str
    engine: str
    versions: dict[str, str]
    together: PositiveInt
    """How many seeds were run as one."""
    at_once: PositiveInt = 1
    """How many such runs shared the device."""
    wall_seconds: float
    """From start to end, of all seeds that were run as one, without the time that they lay stopped."""
    cpu_seconds: float = 0
    """Of all cores together, over the same time."""
    diverged: Annotated[dict[str, Any], _like(_Where)] | None = None
    view: View = "own"
    mode: str = ""
    accuracy: dict[str, dict[str, dict[str, Annotated[dict[str, float], _like(_Accuracy)]]]] = {}
    """By whose (all, participants), view and mode: last, best, best_round."""
    inference: dict[str, dict[str, float]] = {}
    """At the end, by view and mode, mean over all clients."""
    communication: dict[str, dict[str, float]] = {}
    flops: float = 0
    seconds: dict[str, float] = {}
    curves: dict[Whose, Curve] = {}
    spent: Spent | None = None
    clients: Clients | None = None
    states_sha256: str = ""
    """Of the server's and every client's state at the end: two runs with the same one agree to the last bit."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """A run that finished has all that tables and figures ask it for; one that did not says where."""
        if self.status == "diverged":
            if self.diverged is None:
                raise ValueError("diverged is missing")
            return self
        for whose, view in (("all", self.view), ("all", "own"), ("participants", "own")):
            if self.mode not in self.accuracy.get(whose, {}).get(view, {}):
                raise ValueError(f"accuracy.{whose}.{view}.{self.mode} is missing")
        if len(self.curves) < len(WHOSE):
            raise ValueError("a curve is missing")
        if self.clients is None:
            raise ValueError("clients is missing")
        if self.spent is None or len(self.spent.turns) < max(self.curves["participants"].rounds):
            raise ValueError("spent is missing, or shorter than the run")
        return self

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from all others."""
        return self.setting, self.variant, self.seed

    @property
    def dataset(self) -> str:
        """The name of the data."""
        return str(self.recipe["data"]["name"])

    @property
    def converged(self) -> bool:
        """Whether it ended with finite numbers, and with clients that are right more often than by guessing a class."""
        if self.clients is None:
            return False
        classes = 1 + max(label for own in self.clients.classes for label in own)
        return (self.measured("own") or 0.0) > 1 / classes

    def measured(self, protocol: Protocol) -> float | None:
        """The accuracy that counts under a protocol; None if it diverged."""
        if self.status == "diverged":
            return None
        where = counted(protocol, self.view)
        return self.accuracy[where.whose][where.view][self.mode][where.which]

    def served(self, protocol: Protocol) -> Mapping[str, float]:
        """At the end, by mode, the accuracy over all clients of what a client can serve; `paper` has no count of its own."""
        return self.inference.get(self.view if protocol == "fair" else "own", {})

    def curve(self, protocol: Protocol) -> list[tuple[int, float]]:
        """Round and accuracy of those whom a protocol looks at; empty if it diverged."""
        whose, view, _ = counted(protocol, self.view)
        if (found := self.curves.get(whose)) is None:
            return []
        values = found.own if view == "own" or found.aggregated is None else found.aggregated
        return list(zip(found.rounds, values, strict=True))

    def cost(self, protocol: Protocol, target: float) -> Target:
        """What it took until the accuracy that a protocol looks at was reached."""
        whose, view, _ = counted(protocol, self.view)
        reached = next((index for index, accuracy in self.curve(protocol) if accuracy >= target), None)
        if reached is None or self.spent is None:
            return Target(target=target, accuracy_of=whose, view=view, reached=False)
        turns, parameters, flops = (of[reached - 1] for of in (self.spent.turns, self.spent.parameters, self.spent.flops))
        clients = self.recipe["clients"]
        return Target(
            target=target, accuracy_of=whose, view=view, reached=True, rounds=reached, parameters=parameters / clients,
            flops=flops / clients, paper_parameters=parameters / turns * reached, paper_flops=flops / turns * reached,
        )  # fmt: skip

    def is_of(self, recipe: Recipe) -> bool:
        """Whether this recipe would give the same today: each key that the cell recorded has that value, and each that it
        lacks, being newer, has its default.
        """
        try:
            recorded = parse_recipe(self.recipe, source=self.variant)
        except UserError:  # a key that there is no more, or a value that it may not have
            return False
        return self.numbers == NUMBERS and without_seed(recorded) == without_seed(recipe)


def hash_of(recipe: Recipe) -> str:
    """A short name for all that a recipe says, its seed aside, and for the numbers that come of it.

    >>> hash_of(Recipe(seed=1)) == hash_of(Recipe(seed=2)), hash_of(Recipe(rounds=1)) == hash_of(Recipe(rounds=2))
    (True, False)
    """
    said = {"numbers": NUMBERS, **without_seed(recipe)}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def without_seed(recipe: Recipe) -> dict[str, Any]:
    """All that a recipe says, its seed aside."""
    return {key: value for key, value in recipe.resolved().items() if key != "seed"}


def cell_of(setting: str, variant: str, recipe: Recipe, outcome: Outcome, facts: Mapping[str, Any]) -> Cell:
    """A run's cell. `facts` are the fields that a run does not know of itself."""
    plain = outcome.plain()
    same = ("status", "method", "title", "seed", "device", "engine", "versions", "together")
    known = {
        "numbers": NUMBERS, "setting": setting, "variant": variant, "recipe": without_seed(recipe),
        "wall_seconds": round(outcome.wall_seconds, 1), "cpu_seconds": round(outcome.cpu_seconds, 1),
        **{name: plain[name] for name in same}, **facts,
    }  # fmt: skip
    if isinstance(outcome, DivergedRun):
        return Cell(**known, diverged=plain["diverged"])
    results = ("view", "mode", "accuracy", "inference", "communication", "flops", "seconds", "states_sha256")
    return Cell(
        **known | {name: plain[name] for name in results},
        clients=_clients(outcome),
        curves={whose: _curve(outcome, whose) for whose in WHOSE},
        spent=_spent(outcome.records),
    )


def _clients(result: RunResult) -> Clients:
    plain = {
        name: [getattr(row, name) for row in result.clients] for name in ("model", "train_samples", "test_samples", "rounds")
    }
    classes = [[int(label) for label in row.classes.split()] for row in result.clients]
    views = {
        view: [_rounded(row.accuracy_by(view, result.mode)) for row in result.clients] for view, _ in result.inference.items()
    }
    return Clients.model_validate({**plain, "classes": classes, **views})


def _curve(result: RunResult, whose: Whose) -> Curve:
    points = {view: list(curve(result.records, whose, view, result.mode)) for view, _ in result.accuracy.all.items()}
    values = {view: [_rounded(accuracy) for _, accuracy in of_view] for view, of_view in points.items()}
    return Curve.model_validate({"rounds": [index for index, _ in points["own"]], **values})


def _spent(records: Sequence[Record]) -> Spent:
    return Spent(
        turns=list(accumulate(len(record.participants) for record in records)),
        parameters=list(accumulate(record.up.parameters + record.down.parameters for record in records)),
        flops=list(accumulate(float(record.flops) for record in records)),
    )


def _rounded(accuracy: float) -> float:
    return round(accuracy, 6)


def file_of(folder: Path, setting: str, variant: str, seed: int) -> Path:
    """Where a cell lies."""
    return folder / "cells" / setting / f"{variant}-seed-{seed}.json"


def write_cell(folder: Path, cell: Cell) -> Path:
    """Write it where it belongs."""
    path = file_of(folder, *cell.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _compact(cell.model_dump(mode="json", exclude_none=True)))
    return path


def _compact(plain: Mapping[str, Any]) -> str:
    """JSON with a line for each field: lists of numbers would take a line for each number."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in plain.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_cell(path: Path) -> Cell:
    """A cell's file, refused in a sentence if it is none, or another's."""
    try:
        cell = Cell.model_validate_json(path.read_bytes())
        if (path.parent.name, path.name) != (cell.setting, file_of(path, *cell.key).name):
            raise ValueError(f"it is of {cell.setting}/{cell.variant}, seed {cell.seed}")
        return cell
    except (OSError, ValueError) as error:
        said = first_problem(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{path} is not a cell of a reproduction ({said}); delete it and measure it again") from error


def read_cells(folder: Path) -> list[Cell]:
    """All cells of a reproduction, in the order of their names."""
    return [read_cell(path) for path in sorted((folder / "cells").glob("*/*.json"))]


def by_variant(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """The cells of each setting and variant: its seeds."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.setting, cell.variant), []).append(cell)
    return found

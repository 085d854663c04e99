"""Cells: one variant of a method in one setting with one seed, as a small JSON file that says all there is to know of it.

Tables, figures and the page of a reproduction are made from these files alone.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from fedmrl.config import Recipe
from fedmrl.errors import DivergedError, UserError
from fedmrl.federation.loop import Run
from fedmrl.federation.summary import curve
from fedmrl.federation.written import Part, Target, first_problem
from fedmrl.files import write_whole
from fedmrl.version import NUMBERS

Protocol = Literal["paper", "fair"]
PROTOCOLS: Mapping[Protocol, str] = {
    "paper": "best round, its participants, each with the model it has just trained",
    "fair": "last round, all clients, with what the server has last",
}


Whose = Literal["all", "participants"]
WHOSE: tuple[Whose, ...] = ("all", "participants")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Clients(_Part):
    """What each client has and how well it does at the end, in the order of clients."""

    model: list[str]
    classes: list[list[int]]
    train_samples: list[int]
    test_samples: list[int] | None = None
    """Cells that were measured before they were written down do not say."""
    accuracy: Annotated[list[float], Field(min_length=1)]

    @model_validator(mode="after")
    def _are_as_many(self) -> Self:
        lists = (self.model, self.classes, self.train_samples, self.test_samples, self.accuracy)
        if len({len(of_each) for of_each in lists if of_each is not None}) > 1:
            raise ValueError("its lists are not of the same clients")
        return self


class Curve(_Part):
    """Accuracy by round, wherever it was measured, with what the clients hold (`own`) and with what the server has last."""

    rounds: Annotated[list[int], Field(min_length=1)]
    own: list[float]
    aggregated: list[float] | None = None

    @model_validator(mode="after")
    def _are_as_long(self) -> Self:
        if any(len(values) != len(self.rounds) for values in (self.own, self.aggregated) if values is not None):
            raise ValueError("it does not have a value for each of its rounds")
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
    hash: str
    """Of the recipe, and of which numbers fedmrl gives."""
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
    diverged: Annotated[dict[str, Any], _like(_Where)] | None = None
    view: Literal["own", "aggregated"] = "own"
    mode: str = ""
    accuracy: dict[str, dict[str, dict[str, Annotated[dict[str, float], _like(_Accuracy)]]]] = {}
    """By whose (all, participants), view and mode: last, best, best_round."""
    inference: dict[str, dict[str, float]] = {}
    """At the end, by view and mode, mean over all clients."""
    targets: list[Annotated[dict[str, Any], _like(Target)]] = []
    communication: dict[str, dict[str, float]] = {}
    flops: float = 0
    seconds: dict[str, float] = {}
    curves: dict[Whose, Curve] = {}
    clients: Clients | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """A run that finished has all that tables and figures ask it for; one that did not says where."""
        if self.status == "diverged":
            if self.diverged is None:
                raise ValueError("diverged is missing")
            return self
        for whose, view in (("all", self.view), ("participants", "own")):
            if self.mode not in self.accuracy.get(whose, {}).get(view, {}):
                raise ValueError(f"accuracy.{whose}.{view}.{self.mode} is missing")
        if len(self.curves) < len(WHOSE):
            raise ValueError("a curve is missing")
        if self.clients is None:
            raise ValueError("clients is missing")
        return self

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from all others."""
        return self.setting, self.variant, self.seed

    @property
    def dataset(self) -> str:
        """The name of the data."""
        return str(self.recipe["data"]["name"])

    def measured(self, protocol: Protocol) -> float | None:
        """The accuracy that counts under a protocol; None if it diverged."""
        if self.status == "diverged":
            return None
        if protocol == "paper":
            return self.accuracy["participants"]["own"][self.mode]["best"]
        return self.accuracy["all"][self.view][self.mode]["last"]


def hash_of(recipe: Recipe) -> str:
    """A short name for all that a recipe says, its seed aside, and for the numbers that come of it.

    >>> hash_of(Recipe(seed=1)) == hash_of(Recipe(seed=2)), hash_of(Recipe(rounds=1)) == hash_of(Recipe(rounds=2))
    (True, False)
    """
    said = {"numbers": NUMBERS, **_without_seed(recipe)}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _without_seed(recipe: Recipe) -> dict[str, Any]:
    return {key: value for key, value in recipe.resolved().items() if key != "seed"}


def cell_of(setting: str, variant: str, recipe: Recipe, outcome: Run | DivergedError, facts: Mapping[str, Any]) -> Cell:
    """A run's cell. `facts` are the fields that only who ran it knows."""
    known = {
        "setting": setting, "variant": variant, "method": recipe.method.name, "title": recipe.method.title, "seed": recipe.seed,
        "recipe": _without_seed(recipe), "hash": hash_of(recipe), **facts,
    }  # fmt: skip
    if isinstance(outcome, DivergedError):
        at = {"client": outcome.client, "round": outcome.round + 1, "reason": str(outcome)}
        return Cell(**known, status="diverged", diverged=at)
    summary = outcome.summary
    same = (
        "view",
        "mode",
        "accuracy",
        "inference",
        "targets",
        "communication",
        "flops",
        "seconds",
        "device",
        "engine",
        "versions",
    )
    rows = summary["clients"]
    clients = Clients(
        model=[row["model"] for row in rows],
        classes=[[int(label) for label in row["classes"].split()] for row in rows],
        train_samples=[row["train_samples"] for row in rows],
        test_samples=[row["test_samples"] for row in rows],
        accuracy=[round(row["accuracy"], 4) for row in rows],
    )
    curves = {whose: _curve(outcome.records, whose, summary) for whose in WHOSE}
    return Cell(**known | {name: summary[name] for name in same}, status="finished", clients=clients, curves=curves)


def _curve(records: Sequence[Mapping[str, Any]], whose: str, summary: Mapping[str, Any]) -> Curve:
    views = list(summary["accuracy"]["all"])
    points = {view: list(curve(records, whose, view, summary["mode"])) for view in views}
    values = {view: [round(accuracy, 4) for _, accuracy in of_view] for view, of_view in points.items()}
    return Curve(rounds=[index for index, _ in points[views[0]]], **values)


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

"""Cells: one variant of a method in one setting with one seed, as a small JSON file that says all there is to know of it.

Tables, figures and the page of a reproduction are made from these files alone.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fedmrl.config import Recipe
from fedmrl.errors import DivergedError, UserError
from fedmrl.federation.loop import Run
from fedmrl.federation.summary import curve
from fedmrl.files import write_whole
from fedmrl.version import NUMBERS

Protocol = Literal["paper", "fair"]
PROTOCOLS: Mapping[Protocol, str] = {
    "paper": "best round, its participants, each with the model it has just trained",
    "fair": "last round, all clients, with what the server has last",
}


class Clients(BaseModel):
    """What each client has and how well it does at the end, in the order of clients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: list[str]
    classes: list[list[int]]
    train_samples: list[int]
    test_samples: list[int] = []
    """None where a cell was measured before they were written down."""
    accuracy: list[float]


class Curve(BaseModel):
    """Accuracy by round, wherever it was measured, with what the clients hold (`own`) and with what the server has last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: list[int]
    own: list[float]
    aggregated: list[float] | None = None


class Cell(BaseModel):
    """One run of a reproduction. What came out is missing where it diverged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    setting: str
    """The federation, such as `cifar10-n100`: dataset, clients, how data is dealt, which models."""
    variant: str
    """The method and what is changed about it, such as `fedmrl-d1-150`."""
    method: str
    title: str
    seed: int
    command: str
    recipe: dict[str, Any]
    """Resolved, without its seed."""
    hash: str
    """Of the recipe, and of which numbers fedmrl gives."""
    status: Literal["finished", "diverged"]
    device: str
    engine: str
    versions: dict[str, str]
    together: int
    """How many seeds were run as one."""
    at_once: int = 1
    """How many such runs shared the device."""
    wall_seconds: float
    """From start to end, of all seeds that were run as one, without the time that they lay stopped."""
    diverged: dict[str, Any] | None = None
    view: str = "own"
    mode: str = ""
    accuracy: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    """By whose (all, participants), view and mode: last, best, best_round."""
    inference: dict[str, dict[str, float]] = {}
    """At the end, by view and mode, mean over all clients."""
    targets: list[dict[str, Any]] = []
    communication: dict[str, dict[str, float]] = {}
    flops: float = 0
    seconds: dict[str, float] = {}
    curves: dict[Literal["all", "participants"], Curve] = {}
    clients: Clients | None = None

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
    curves = {whose: _curve(outcome.records, whose, summary) for whose in ("all", "participants")}
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
    """A cell's file, refused in a sentence if it is none."""
    try:
        return Cell.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{path} is not a cell of a reproduction ({first}); delete it and measure it again") from error


def read_cells(folder: Path) -> list[Cell]:
    """All cells of a reproduction, in the order of their names."""
    return [read_cell(path) for path in sorted((folder / "cells").glob("*/*.json"))]


def by_variant(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """The cells of each setting and variant: its seeds."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.setting, cell.variant), []).append(cell)
    return found

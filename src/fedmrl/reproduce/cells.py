"""Cells: the result of one variant of a method in one setting with one seed, as a small, self-contained JSON file.

Tables, figures and the page of a reproduction are made only from these files.
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


class CellClients(_Part):
    """Each client's data, model and final accuracy, in the order of clients."""

    model: list[str]
    classes: list[list[int]]
    train_samples: list[int]
    test_samples: list[int]
    rounds: list[int]
    """The number of rounds in which each took part."""
    own: Annotated[list[float], Field(min_length=1)]
    """Accuracy with the client's own copy of the shared part."""
    aggregated: list[float] | None = None
    """Accuracy with the server's last shared part; None if predictions do not depend on it."""

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        lists = (self.model, self.classes, self.train_samples, self.test_samples, self.rounds, self.own, self.aggregated)
        if len({len(of_each) for of_each in lists if of_each is not None}) > 1:
            raise ValueError("its lists differ in length")
        return self

    def accuracy(self, protocol: Protocol) -> list[float]:
        """Each client's accuracy after the last round, with the server's shared part (`fair`) or its own copy."""
        return self.aggregated if protocol == "fair" and self.aggregated is not None else self.own


class CellCurve(_Part):
    """Accuracy in each evaluated round, with the clients' own copies (`own`) and with the server's (`aggregated`)."""

    rounds: Annotated[list[int], Field(min_length=1)]
    own: list[float]
    aggregated: list[float] | None = None

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if any(len(values) != len(self.rounds) for values in (self.own, self.aggregated) if values is not None):
            raise ValueError("its lists differ in length")
        return self


class CumulativeCost(_Part):
    """The total cost over all clients up to the end of each round."""

    turns: list[int]
    """How often clients have taken part."""
    parameters: list[int]
    """Numbers sent and received."""
    flops: list[float]

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if not len(self.turns) == len(self.parameters) == len(self.flops):
            raise ValueError("its lists differ in length")
        return self


class _Data(Part):
    name: str


class _Training(Part):
    epochs: PositiveInt


class _Recipe(Part):
    """The part of a recipe that is read from a cell."""

    clients: PositiveInt
    rounds: PositiveInt
    participation: PositiveFloat
    data: _Data
    method: dict[str, Any]
    training: _Training


class _Accuracy(Part):
    last: float
    best: float


class _Divergence(Part):
    client: int
    round: int
    reason: str


def _shaped_like(shape: type[Part]) -> BeforeValidator:
    """Checks that plain data has the fields of `shape`; further fields are allowed."""

    def check(plain: Any) -> Any:
        try:
            shape.model_validate(plain)
        except ValidationError as error:
            raise ValueError(first_problem(error)) from error
        return plain

    return BeforeValidator(check)


class Cell(_Part):
    """One run of a reproduction; a diverged one has no results."""

    format: Literal[2] = 2
    """The version of the format, increased by incompatible changes."""
    numbers: int
    """`fedmrl.version.NUMBERS` at the time of the run."""
    setting: str
    """The federation, such as `cifar10-n100`: dataset, number of clients, partition, models."""
    variant: str
    """The method and its changed settings, such as `fedmrl-d1-150`."""
    method: str
    title: str
    seed: int
    command: str
    recipe: Annotated[dict[str, Any], _shaped_like(_Recipe)]
    """The resolved recipe without its seed."""
    status: Literal["finished", "diverged"]
    device: str
    engine: str
    versions: dict[str, str]
    together: PositiveInt
    """The number of seeds that were run together."""
    at_once: PositiveInt = 1
    """The number of runs that shared the device."""
    wall_seconds: float
    """The duration of all seeds that were run together, without interruptions."""
    cpu_seconds: float = 0
    """The CPU time of all cores over this duration."""
    diverged: Annotated[dict[str, Any], _shaped_like(_Divergence)] | None = None
    view: View = "own"
    mode: str = ""
    accuracy: dict[str, dict[str, dict[str, Annotated[dict[str, float], _shaped_like(_Accuracy)]]]] = {}
    """By whose clients (all, participants), view and mode: last, best, best_round."""
    inference: dict[str, dict[str, float]] = {}
    """Final accuracy by view and mode, mean over all clients."""
    communication: dict[str, dict[str, float]] = {}
    flops: float = 0
    seconds: dict[str, float] = {}
    curves: dict[Whose, CellCurve] = {}
    spent: CumulativeCost | None = None
    clients: CellClients | None = None
    states_sha256: str = ""
    """The hash of all final states, of the server and every client; equal hashes mean bit-identical models."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """Checks that a finished run has everything tables and figures need, and a diverged one its cause."""
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
        """The cell's identity."""
        return self.setting, self.variant, self.seed

    @property
    def dataset(self) -> str:
        """The dataset's name."""
        return str(self.recipe["data"]["name"])

    @property
    def converged(self) -> bool:
        """Whether the run finished with an accuracy above chance."""
        if self.clients is None:
            return False
        classes = 1 + max(label for own in self.clients.classes for label in own)
        return (self.measured("own") or 0.0) > 1 / classes

    def measured(self, protocol: Protocol) -> float | None:
        """The accuracy under a protocol; None if the run diverged."""
        if self.status == "diverged":
            return None
        where = counted(protocol, self.view)
        return self.accuracy[where.whose][where.view][self.mode][where.which]

    def served(self, protocol: Protocol) -> Mapping[str, float]:
        """The final accuracy over all clients by inference mode; `paper` shares the numbers of `own`."""
        return self.inference.get(self.view if protocol == "fair" else "own", {})

    def curve(self, protocol: Protocol) -> list[tuple[int, float]]:
        """The rounds and accuracies under a protocol; empty if the run diverged."""
        whose, view, _ = counted(protocol, self.view)
        if (found := self.curves.get(whose)) is None:
            return []
        values = found.own if view == "own" or found.aggregated is None else found.aggregated
        return list(zip(found.rounds, values, strict=True))

    def cost(self, protocol: Protocol, target: float) -> Target:
        """The cost of reaching an accuracy under a protocol."""
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

    def matches(self, recipe: Recipe) -> bool:
        """Whether the cell has the result of this recipe: recorded keys must be equal, and newer keys have their default."""
        try:
            recorded = parse_recipe(self.recipe, source=self.variant)
        except UserError:  # an obsolete key or value
            return False
        return self.numbers == NUMBERS and without_seed(recorded) == without_seed(recipe)


def recipe_hash(recipe: Recipe) -> str:
    """A hash of a recipe without its seed, and of the version of the numbers.

    >>> recipe_hash(Recipe(seed=1)) == recipe_hash(Recipe(seed=2))
    True
    >>> recipe_hash(Recipe(rounds=1)) == recipe_hash(Recipe(rounds=2))
    False
    """
    said = {"numbers": NUMBERS, **without_seed(recipe)}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def without_seed(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe without its seed."""
    return {key: value for key, value in recipe.resolved().items() if key != "seed"}


def make_cell(setting: str, variant: str, recipe: Recipe, outcome: Outcome, facts: Mapping[str, Any]) -> Cell:
    """Makes a run's cell; `facts` has the fields that the run itself does not know."""
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


def _clients(result: RunResult) -> CellClients:
    plain = {
        name: [getattr(row, name) for row in result.clients] for name in ("model", "train_samples", "test_samples", "rounds")
    }
    classes = [[int(label) for label in row.classes.split()] for row in result.clients]
    views = {
        view: [_rounded(row.accuracy_by(view, result.mode)) for row in result.clients] for view, _ in result.inference.items()
    }
    return CellClients.model_validate({**plain, "classes": classes, **views})


def _curve(result: RunResult, whose: Whose) -> CellCurve:
    points = {view: list(curve(result.records, whose, view, result.mode)) for view, _ in result.accuracy.all.items()}
    values = {view: [_rounded(accuracy) for _, accuracy in of_view] for view, of_view in points.items()}
    return CellCurve.model_validate({"rounds": [index for index, _ in points["own"]], **values})


def _spent(records: Sequence[Record]) -> CumulativeCost:
    return CumulativeCost(
        turns=list(accumulate(len(record.participants) for record in records)),
        parameters=list(accumulate(record.up.parameters + record.down.parameters for record in records)),
        flops=list(accumulate(float(record.flops) for record in records)),
    )


def _rounded(accuracy: float) -> float:
    return round(accuracy, 6)


def cell_path(folder: Path, setting: str, variant: str, seed: int) -> Path:
    """The path of a cell's file."""
    return folder / "cells" / setting / f"{variant}-seed-{seed}.json"


def write_cell(folder: Path, cell: Cell) -> Path:
    """Writes a cell to its path in the folder."""
    path = cell_path(folder, *cell.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _compact(cell.model_dump(mode="json", exclude_none=True)))
    return path


def _compact(plain: Mapping[str, Any]) -> str:
    """JSON with one line for each field, so that lists of numbers stay on one line."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in plain.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_cell(path: Path) -> Cell:
    """Reads a cell; raises `UserError` if the file is invalid or belongs to another cell."""
    try:
        cell = Cell.model_validate_json(path.read_bytes())
        if (path.parent.name, path.name) != (cell.setting, cell_path(path, *cell.key).name):
            raise ValueError(f"it belongs to {cell.setting}/{cell.variant}, seed {cell.seed}")
        return cell
    except (OSError, ValueError) as error:
        said = first_problem(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{path} is not a cell of a reproduction ({said}); delete it and repeat the run") from error


def read_cells(folder: Path) -> list[Cell]:
    """Reads all cells of a reproduction, ordered by path."""
    return [read_cell(path) for path in sorted((folder / "cells").glob("*/*.json"))]


def by_variant(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """Groups cells by setting and variant."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.setting, cell.variant), []).append(cell)
    return found

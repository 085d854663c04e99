"""A run's files as they are read back: `summary.json` and `rounds.jsonl`, each field of the type that it was written with."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedmrl.errors import UserError

T = TypeVar("T")


class Part(BaseModel):
    """A part of a file, as far as it is read; newer versions may write more."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class LastAndBest(Part):
    """Accuracy at the last round and at the best."""

    last: float
    best: float
    best_round: int


class Sent(Part):
    """What all clients together sent, or were sent."""

    parameters: float
    bytes: float


class Target(Part):
    """What it took to reach an accuracy; nothing of it where it was not reached."""

    target: float
    accuracy_of: str
    view: str
    reached: bool
    rounds: int = 0
    parameters: float = 0
    flops: float = 0
    paper_parameters: float = 0
    paper_flops: float = 0

    @model_validator(mode="after")
    def _says_what_it_took(self) -> Self:
        if self.reached and not {"rounds", "parameters", "flops", "paper_parameters", "paper_flops"} <= self.model_fields_set:
            raise ValueError("it was reached, and it does not say what that took")
        return self


class Client(Part):
    """What a client is, what it has, and how well it does at the end, by view and mode too."""

    model_config = ConfigDict(extra="allow")

    model: str
    classes: str
    train_samples: int
    test_samples: int
    rounds: int
    accuracy: float

    @model_validator(mode="after")
    def _accuracies(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if not isinstance(value, float | int):
                raise ValueError(f"{name} is no number")
        return self

    def accuracy_by(self, view: str, mode: str) -> float:
        """Its accuracy in a view and mode."""
        return float((self.model_extra or {}).get(f"{view}_{mode}", self.accuracy))


class Summary(Part):
    """A finished run's `summary.json`."""

    status: Literal["finished"]
    method: str
    seed: int
    rounds: int
    mode: str
    view: str
    engine: str = "not recorded"
    device: str
    versions: dict[str, str]
    accuracy: dict[str, dict[str, dict[str, LastAndBest]]]
    inference: dict[str, dict[str, float]]
    communication: dict[str, Sent]
    flops: float
    targets: list[Target]
    seconds: dict[str, float]
    wall_seconds: float = 0
    """Of the whole run; runs of version 0.1 do not say."""
    cpu_seconds: float = 0
    """Of all cores together."""
    together: int = 1
    """How many seeds were run as one; `seconds` are of all of them."""
    clients: list[Client]
    class_names: list[str] | None = None
    split: list[dict[Annotated[int, Field(strict=False)], int]] | None = None
    """Training samples by class, for each client; runs of version 0.1 do not have it."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """What all that reads it asks for is there."""
        for whose, view in (("all", self.view), ("all", "own"), ("participants", "own")):
            if self.mode not in self.accuracy.get(whose, {}).get(view, {}):
                raise ValueError(f"there is no accuracy.{whose}.{view}.{self.mode}")
        modes = {view: set(of_view) for view, of_view in self.inference.items()}
        if self.mode not in modes.get(self.view, ()) or any(of_view != modes[self.view] for of_view in modes.values()):
            raise ValueError("inference does not have every mode in every view")
        if not {"up", "down"} <= self.communication.keys() or not self.clients or self.together < 1:
            raise ValueError("communication, clients or together is not whole")
        if self.split is not None and (len(self.split) != len(self.clients) or self.class_names is None):
            raise ValueError("split is not of these clients")
        return self


class Record(Part):
    """A line of `rounds.jsonl`, as far as a page shows it."""

    round: int
    accuracy: dict[str, dict[str, dict[str, float]]]


class WholeRecord(Record):
    """The same with all that a run that goes on needs of it."""

    participants: Annotated[list[int], Field(min_length=1)]
    loss: float
    up: Sent
    down: Sent
    flops: float
    seconds: dict[str, float]


def read_text(path: Path) -> str:
    """A file's text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); run it again into another folder") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: it is not text; run it again into another folder") from error


def parsed(path: Path, text: str | bytes) -> Any:
    """A text as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); run it again into another folder") from error


def checked(path: Path, wanted: type[T], plain: Any) -> T:
    """Plain data, if it has this shape."""
    try:
        return TypeAdapter(wanted).validate_python(plain)
    except ValidationError as error:
        raise UserError(f"{path} is damaged ({first_problem(error)}); run it again into another folder") from error


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    said = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {said}" if where else said


def read_summary(path: Path) -> Summary:
    """A finished run's summary."""
    return checked(path, Summary, parsed(path, read_text(path)))


def read_records(path: Path) -> list[Record]:
    """A record for each line of a log."""
    return [checked(path, Record, parsed(path, line)) for line in read_text(path).splitlines()]

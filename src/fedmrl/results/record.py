"""The record of a round, a line of `rounds.jsonl`, from which curves and costs are computed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from fedmrl.results.accuracy import RoundAccuracy, Whose
from fedmrl.schema import Part, checked, parsed, read_text


class Traffic(Part):
    """Traffic of all clients in one direction."""

    parameters: int
    bytes: int


class LeftOut(Part):
    """A client that was asked and whose reply does not count."""

    client: int
    reason: str


class Record(Part):
    """What happened in a round."""

    round: int
    """Counted from 1."""
    asked: list[int] | None = None
    """The clients that the server asked; None in runs of version 0.1."""
    participants: list[int]
    """The clients that replied."""
    left_out: list[LeftOut] = Field(default_factory=list)
    """The clients whose replies do not count, with the reasons; those that sent none at all are only in `asked`."""
    not_evaluated: list[int] | None = None
    """The clients that were to be evaluated after this round and gave no counts; None if there are none."""
    loss: float | None
    """The mean over the participants; None if no client replied."""
    accuracy: RoundAccuracy
    up: Traffic
    down: Traffic
    flops: int
    seconds: dict[str, float] = Field(default_factory=dict)
    """The round's time by stage."""
    epsilon: float | None = None
    """The privacy spent up to this round; None without differential privacy."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.loss is None) is bool(self.participants):
            raise ValueError("participants and loss do not match")
        return self

    def plain(self) -> dict[str, Any]:
        """Plain data, as written to `rounds.jsonl`."""
        without = set() if self.left_out else {"left_out"}
        return self.model_dump(mode="json", exclude_none=True, exclude=without) | {"loss": self.loss}


def read_records(path: Path) -> list[Record]:
    """Reads the records of a log, one per line."""
    return [checked(path, Record, parsed(path, line)) for line in read_text(path).splitlines()]


def curve(records: Sequence[Record], whose: Whose, view: str, mode: str) -> Iterator[tuple[int, float]]:
    """Round and accuracy, for each round that measured this accuracy."""
    for record in records:
        if (means := record.accuracy[whose]) is not None and (by_mode := means.get(view)) is not None:
            yield record.round, by_mode[mode]

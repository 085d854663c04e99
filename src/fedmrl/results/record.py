"""A round's record, as a line of `rounds.jsonl`; what a run's curves and costs are made from."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from fedmrl.results.accuracy import RoundAccuracy, Whose
from fedmrl.schema import Part, checked, parsed, read_text


class Sent(Part):
    """What all clients together sent, or were sent."""

    parameters: int
    bytes: int


class Record(Part):
    """What happened in a round."""

    round: int
    """Counted from 1."""
    asked: list[int] | None = None
    """Whom the server asked; runs of version 0.1 do not say."""
    participants: list[int]
    """Who replied."""
    loss: float | None
    """Mean over the participants; None where nobody replied."""
    accuracy: RoundAccuracy
    up: Sent
    down: Sent
    flops: int
    seconds: dict[str, float] = Field(default_factory=dict)
    """What the round took, by stage."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.loss is None) is bool(self.participants):
            raise ValueError("participants and loss do not go together")
        return self

    def plain(self) -> dict[str, Any]:
        """As it is written."""
        return self.model_dump(mode="json", exclude_none=True) | {"loss": self.loss}


def read_records(path: Path) -> list[Record]:
    """A record for each line of a log."""
    return [checked(path, Record, parsed(path, line)) for line in read_text(path).splitlines()]


def curve(records: Sequence[Record], whose: Whose, view: str, mode: str) -> Iterator[tuple[int, float]]:
    """Round and accuracy wherever this kind of accuracy was measured."""
    for record in records:
        if (means := record.accuracy[whose]) is not None:
            yield record.round, means[view][mode]

"""The cost of reaching a target accuracy."""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import model_validator

from fedmrl.results.accuracy import Whose
from fedmrl.results.record import Record, curve
from fedmrl.schema import Part


class Target(Part):
    """The cost of reaching a target accuracy in an evaluated round; None if it was not reached.

    `parameters` and `flops` are the actual cost, averaged over all clients. `paper_parameters` and `paper_flops` are the
    paper's product (one participant's cost in a round, times rounds), which counts each client in every round.
    """

    target: float
    accuracy_of: str
    view: str
    mode: str = ""
    reached: bool
    rounds: int | None = None
    parameters: float | None = None
    flops: float | None = None
    paper_parameters: float | None = None
    paper_flops: float | None = None

    @model_validator(mode="after")
    def _has_costs(self) -> Self:
        if self.reached and None in (self.rounds, self.parameters, self.flops, self.paper_parameters, self.paper_flops):
            raise ValueError("the target was reached, but its costs are missing")
        return self


def cost_to_target(records: Sequence[Record], clients: int, target: float, whose: Whose, view: str, mode: str) -> Target:
    """Rounds, parameters and FLOPs until an accuracy was reached."""
    key: dict[str, Any] = {"target": target, "accuracy_of": whose, "view": view, "mode": mode}
    reached = next((r for r, accuracy in curve(records, whose, view, mode) if accuracy >= target), None)
    if reached is None:
        return Target(**key, reached=False)
    until = records[:reached]
    turns = max(1, sum(len(record.participants) for record in until))
    parameters = sum(record.up.parameters + record.down.parameters for record in until)
    flops = sum(record.flops for record in until)
    return Target(
        **key, reached=True, rounds=reached, parameters=parameters / clients, flops=flops / clients,
        paper_parameters=parameters / turns * reached, paper_flops=flops / turns * reached,
    )  # fmt: skip

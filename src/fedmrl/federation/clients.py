"""What the server asks clients and what they reply, wherever they are: simulated here, or on machines of their own."""

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmrl.engines import CorrectCounts
from fedmrl.messages import Tensors
from fedmrl.methods import Round

State = Any
"""What a client's state is called by. The server passes it on, and never looks inside."""


@dataclass(frozen=True)
class Enrolled:
    """What the server knows of a client."""

    name: str
    model: str
    """What kind of model it has, by its label."""
    train: int
    test: int
    """How many samples it trains on and is tested with."""
    classes: Mapping[int, int] | None = None
    """How many training samples of each class it has, by label; None if it does not say."""


Roster = Mapping[int, Enrolled]
"""What the server knows of its clients, by their numbers."""


@dataclass(frozen=True)
class Request:
    """What the server asks of one client."""

    client: int
    state: State | None
    """Which of its states the client goes on from; None: the one that it begins with."""
    content: Tensors | None
    """What the server sends along; None: nothing."""
    earlier: int = 0
    """In how many rounds it has taken part."""
    run: int = 0
    """Which of the runs that are made together it is for."""


@dataclass(frozen=True)
class Reply:
    """What a client replies when it has trained."""

    client: int
    state: State
    """What its new state is called by; it counts once the server has committed the round."""
    upload: Tensors
    told: Tensor
    """Its mean loss, and 1 if its weights are finite, else 0: see `Trained.told`."""
    flops: int
    run: int = 0


@dataclass(frozen=True)
class Score:
    """What a client replies when it has been evaluated."""

    client: int
    correct: CorrectCounts
    run: int = 0


class Clients(ABC):
    """The clients of a run, or of several runs that are made together. They keep their states themselves.

    A reply may be missing; those that came are in the order of the requests.
    """

    runs_ahead: bool = False
    """Whether replies come before the work is done, so that to read their numbers is to wait for it."""
    at_once: int = 500
    """How many are asked to be evaluated at once."""
    device: torch.device
    """Where uploads arrive, and so where the server works."""

    @abstractmethod
    def roster(self, run: int = 0) -> Roster:
        """The clients of a run. More may join between its rounds."""

    @abstractmethod
    def train(self, round_: Round, requests: Sequence[Request], upcoming: Sequence[Request] = ()) -> list[Reply]:
        """Each client takes in what it is sent, trains as the method says, and makes its upload.

        `upcoming` is what the next round will ask for, as far as it is known: clients may prepare for it.
        """

    @abstractmethod
    def evaluate(self, requests: Sequence[Request], modes: Sequence[str]) -> list[Score]:
        """How many of its test samples each client gets right: as it is, and with what it is sent."""

    def foresee(  # noqa: B027, what prepares nothing needs nothing
        self, rounds: Mapping[int, Sequence[Sequence[int]]], begun: Mapping[int, Container[int]]
    ) -> None:
        """Which clients of each run are asked in each of its rounds, and which have a state already."""

    def release(self, run: int, state: State) -> None:  # noqa: B027
        """The client has a newer state that counts."""

    def digest(self, run: int, server: Tensors, states: Mapping[int, State]) -> str | None:
        """A SHA-256 of the server's and all these clients' states; None where they cannot be looked at."""
        return None

    def facts(self, run: int) -> dict[str, Any]:
        """What a result should say of where these clients were run, and of their data."""
        return {}

    def close(self) -> None:  # noqa: B027
        """The runs are over."""

"""The interface between server and clients, which may be simulated here or run on other machines."""

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
"""A handle to a client's state, opaque to the server."""


@dataclass(frozen=True)
class Enrolled:
    """What the server knows of a client."""

    name: str
    model: str
    """The label of its model."""
    train: int
    test: int
    """Numbers of training and test samples."""
    classes: Mapping[int, int] | None = None
    """Training samples per class label; None if the client does not report them."""


Roster = Mapping[int, Enrolled]
"""What the server knows of each client, by client number."""


@dataclass(frozen=True)
class Request:
    """What the server asks of one client."""

    client: int
    state: State | None
    """The state to continue from; None: the initial one."""
    content: Tensors | None
    """What the server sends; None: nothing."""
    earlier: int = 0
    """Rounds in which the client has already taken part."""
    run: int = 0
    """Index of the run, when several run together."""


@dataclass(frozen=True)
class Reply:
    """A client's reply after training."""

    client: int
    state: State
    """A handle to its new state, which replaces the old one when the server commits the round."""
    upload: Tensors
    told: Tensor
    """The mean loss, and 1 if the weights are finite, else 0; see `Trained.told`."""
    flops: int
    run: int = 0


@dataclass(frozen=True)
class Score:
    """A client's reply after evaluation."""

    client: int
    correct: CorrectCounts
    run: int = 0


class Clients(ABC):
    """The clients of one run, or of several that run together. They keep their own states.

    Replies may be missing; the others keep the order of the requests.
    """

    runs_ahead: bool = False
    """Whether replies return before the device has finished, so that reading their numbers waits for it."""
    at_once: int = 500
    """The most clients evaluated in one call."""
    device: torch.device
    """The device of the uploads, on which the server aggregates."""

    @abstractmethod
    def roster(self, run: int = 0) -> Roster:
        """The clients of a run; more may join between rounds."""

    @abstractmethod
    def train(self, round_: Round, requests: Sequence[Request], upcoming: Sequence[Request] = ()) -> list[Reply]:
        """Lets each client receive its content, train and upload.

        `upcoming` has the next round's requests, as far as known, so that clients can prepare.
        """

    @abstractmethod
    def evaluate(self, requests: Sequence[Request], modes: Sequence[str]) -> list[Score]:
        """Counts each client's correct predictions, before and after it receives the server's content."""

    def foresee(  # noqa: B027, an optional hook
        self, rounds: Mapping[int, Sequence[Sequence[int]]], begun: Mapping[int, Container[int]]
    ) -> None:
        """Announces the clients of each run's rounds, and which of them already have a state."""

    def release(self, run: int, state: State) -> None:  # noqa: B027
        """Drops a state that a newer one has replaced."""

    def digest(self, run: int, server: Tensors, states: Mapping[int, State]) -> str | None:
        """The SHA-256 of the server's and these clients' states; None if they cannot be read."""
        return None

    def facts(self, run: int) -> dict[str, Any]:
        """Entries for the run's result: where the clients ran, and their data."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Frees resources when the runs are over."""

"""The interface between server and clients, which may be simulated here or run on other machines."""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmrl.engines import CorrectCounts
from fedmrl.errors import UserError
from fedmrl.export import FinalNets
from fedmrl.export.final_nets import FinalStates
from fedmrl.messages import Tensors
from fedmrl.methods import Round
from fedmrl.states import StateFile

Since = Mapping[int, int]
"""The last round of each client that has taken part, which names its state."""


class OtherModelsError(UserError):
    """The states of a checkpoint do not fit the clients' models."""


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
    since: int | None
    """The round after which its state was kept, from which it continues; None: the initial state."""
    content: Tensors | None
    """What the server sends; None: nothing."""
    earlier: int = 0
    """Rounds in which the client has already taken part."""
    run: int = 0
    """Index of the run, when several run together."""


@dataclass(frozen=True)
class Reply:
    """A client's reply after training. It keeps its new state, by the round; the old one until the server commits."""

    client: int
    upload: Tensors
    told: Tensor
    """The mean loss, and 1 if the weights are finite, else 0; see `Trained.told`."""
    flops: int
    run: int = 0
    correct: Mapping[str, int] | None = None
    """Correct predictions on its test samples right after training, by mode; None if it is asked for them separately."""


@dataclass(frozen=True)
class NoReply:
    """A client that was asked and whose reply does not count, with the reason, as a clause about the client."""

    client: int
    reason: str
    run: int = 0


@dataclass(frozen=True)
class Score:
    """A client's reply after evaluation."""

    client: int
    correct: CorrectCounts
    run: int = 0


class Clients(ABC):
    """The clients of one run, or of several that run together. They keep their own states, which the server names by round.

    Replies may be missing; the others keep the order of the requests.
    """

    runs_ahead: bool = False
    """Whether replies return before the device has finished, so that reading their numbers waits for it."""
    at_once: int = 500
    """The most clients evaluated in one call."""
    scores_every_round: bool = True
    """Whether a round's participants are evaluated after it; if not, their replies carry their own counts."""
    cpu_seconds: float = 0.0
    """CPU time that clients have spent in other processes."""
    device: torch.device
    """The device of the uploads, on which the server aggregates."""

    @abstractmethod
    def roster(self, run: int = 0) -> Roster:
        """The clients of a run; more may join between rounds."""

    @abstractmethod
    def train(self, round_: Round, requests: Sequence[Request], upcoming: Sequence[Request] = ()) -> list[Reply | NoReply]:
        """Lets each client receive its content, train and upload.

        `upcoming` has the next round's requests, as far as known, so that clients can prepare.
        """

    @abstractmethod
    def evaluate(self, requests: Sequence[Request], modes: Sequence[str]) -> list[Score]:
        """Counts each client's correct predictions, before and after it receives the server's content."""

    def check_server(self, round_: Round, server: Tensors) -> None:  # noqa: B027, an optional hook
        """Raises `UserError` for a server's state whose content clients would refuse, before the round is committed."""

    def foresee(  # noqa: B027, an optional hook
        self, rounds: Mapping[int, Sequence[Sequence[int]]], begun: Mapping[int, Container[int]]
    ) -> None:
        """Announces the clients of each run's rounds, and which of them already have a state."""

    def confirm(self, run: int, since: Since) -> None:  # noqa: B027
        """Announces that a round is committed: of these clients, only the states after these rounds are needed."""

    def save(self, run: int, since: Since, folder: Path) -> Mapping[int, StateFile]:
        """Writes the clients' states into a checkpoint's folder, as far as they are not there yet.

        By default clients are elsewhere and keep their states themselves.
        """
        return {}

    def restore(self, run: int, since: Since, files: Mapping[int, StateFile]) -> None:  # noqa: B027
        """Takes over the states of a checkpoint; raises `UserError` if they do not fit the clients."""

    def states(self, run: int, since: Since) -> Iterator[tuple[int, Tensors]] | None:
        """Each of these clients with its state after its round; None if clients keep their states for themselves."""
        return None

    def final_nets(self, run: int, states: FinalStates) -> FinalNets | None:
        """What builds the clients' nets from their final states; None if they are elsewhere."""
        return None

    def facts(self, run: int) -> dict[str, Any]:
        """Entries for the run's result: where the clients ran, and their data."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Frees resources when the runs are over."""

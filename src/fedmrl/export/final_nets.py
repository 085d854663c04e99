"""Clients' nets after the last round, each with the server's last shared part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from fedmrl.data import Preparation
from fedmrl.engines import Terms
from fedmrl.errors import UserError
from fedmrl.messages import Tensors
from fedmrl.methods import ClientNet
from fedmrl.models import ModelSpec
from fedmrl.states import StateFile, read_index, read_state

_HOST = torch.device("cpu")
_RUN_AGAIN = "run it again into another folder"


class Final(NamedTuple):
    """The server's last state and a client's (None: it never took part)."""

    server: Tensors
    client: Tensors | None
    content: Tensors | None = None
    """What the server has sent, where only that is known of its state."""


class FinalStates(Protocol):
    """Where a run's final states are."""

    def of(self, client: int) -> Final:
        """The final state of a client, with the server's."""


@dataclass(frozen=True)
class InMemory:
    """The final states of a run without a folder."""

    server: Tensors
    clients: Mapping[int, Tensors]

    def of(self, client: int) -> Final:
        """See `FinalStates`."""
        return Final(self.server, self.clients.get(client))


@dataclass(frozen=True)
class InRunFolder:
    """The final states in the folder of a finished run."""

    folder: Path
    rounds: int

    def of(self, client: int) -> Final:
        """See `FinalStates`; checks the files' SHA-256."""
        states = self.folder / "checkpoint"
        index = read_index(states)
        if index is None:
            raise UserError(
                f"{self.folder} has no final models: they were not to be kept, or its version of fedmrl deleted them after a "
                f"comparison; {_RUN_AGAIN}"
            )
        if index.rounds != self.rounds:
            raise UserError(f"{states} is of round {index.rounds}, and the run has {self.rounds}; {_RUN_AGAIN}")
        if index.times and not index.clients:
            raise UserError(
                f"{self.folder} is a server's folder, and each client has its model itself; there 'fedmrl client export' "
                "writes it to a file"
            )
        own = index.clients.get(client)
        return Final(_read(index.file(states, index.server)), None if own is None else _read(index.file(states, own)))


def _read(file: StateFile) -> Tensors:
    try:
        return read_state(file, _HOST)
    except OSError as error:
        raise UserError(f"{file.path} cannot be read ({error.strerror}); {_RUN_AGAIN}") from error


class FinalNets:
    """Builds clients' final nets, on the host."""

    def __init__(
        self,
        terms: Terms,
        models: Mapping[int, ModelSpec],
        held: Mapping[int, Sequence[int]],
        preparation: Preparation,
        states: FinalStates,
    ) -> None:
        """`held` are the classes in each client's training data."""
        self.terms, self.models, self.held = terms, models, held
        self.preparation, self._states = preparation, states

    def net(self, client: int) -> ClientNet:
        """A client's net with its own last state and the server's last shared part, in eval mode."""
        final, method = self._states.of(client), self.terms.method
        net = self.terms.fresh_net(client, self.models[client], self.held[client])
        if final.client is None:
            method.receive(net, method.answer(self.terms.server_start(_HOST), client, None))
        else:
            _load(net, final.client, self.models[client].label, client)
        if final.content is not None:
            method.receive(net, final.content)
        elif method.hears_server:
            method.receive(net, method.answer(final.server, client, None))
        return net.eval().requires_grad_(False)


def _load(net: ClientNet, state: Tensors, label: str, client: int) -> None:
    own = {name: tensor.shape for name, tensor in net.state_dict().items()}
    found = {name: tensor.shape for name, tensor in state.items()}
    for name in sorted(own.keys() | found.keys()):
        if own.get(name) != found.get(name):
            has = f"has shape {list(found[name])} in the run" if name in found else "is not in the run"
            raise UserError(
                f"client {client}'s trained model is not a {label!r}: {name} {has}; give the model that it was trained with"
            )
    net.load_state_dict(state)

"""Simulated clients: trained on this machine by an engine, with their states in a store."""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fedmrl.config import ModelsTable
from fedmrl.data import Preparation
from fedmrl.data.partition import split_json
from fedmrl.engines import EngineChoice, Member, Setting, Trained, Turn, engine_for
from fedmrl.errors import UserError
from fedmrl.export import FinalNets
from fedmrl.export.final_nets import FinalStates
from fedmrl.federation.clients import (
    Clients,
    Enrolled,
    NoReply,
    OtherModelsError,
    Reply,
    Request,
    Roster,
    Score,
    Since,
)
from fedmrl.federation.initial_weights import InitialNets
from fedmrl.federation.setup import joined
from fedmrl.federation.store import AnyStore, DeviceStore
from fedmrl.messages import Tensors, copy, size
from fedmrl.methods import Round
from fedmrl.metrics.flops import FlopCounter
from fedmrl.models import Model, ModelSpec
from fedmrl.results import split_digest
from fedmrl.states import StateFile

_LOADED = 128 * 1024**2  # bytes of states fetched at once for an evaluation, unless they are on the device


class SimulatedClients(Clients):
    """The clients of one run, or of several runs with different seeds, which the engine trains together."""

    def __init__(
        self,
        settings: Sequence[Setting],
        engine: EngineChoice = "reference",
        stores: Sequence[AnyStore] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._choice, self._tell = engine, tell
        self._foreseen: dict[int, Sequence[Sequence[int]]] = {}
        stores = stores or [DeviceStore(setting.device) for setting in settings]
        self._runs = [_Run(setting, store) for setting, store in zip(settings, stores, strict=True)]
        self._start_engine()

    def _start_engine(self) -> None:
        self.engine = engine_for(self._choice, *(run.setting for run in self._runs))
        self.engine.tell = self._tell
        self.device = self._runs[0].setting.device
        self.runs_ahead = self.engine.runs_ahead and all(run.store.where == "device" for run in self._runs)

    @property
    def at_once(self) -> int:  # type: ignore[override]
        """See `Clients`; fewer where states have to be fetched."""
        return min(run.at_once for run in self._runs)

    def setting(self, run: int = 0) -> Setting:
        """The setting of a run."""
        return self._runs[run].setting

    def roster(self, run: int = 0) -> Roster:
        """See `Clients`."""
        return self._runs[run].roster

    def foresee(self, rounds: Mapping[int, Sequence[Sequence[int]]], begun: Mapping[int, Container[int]]) -> None:
        """See `Clients`."""
        self._foreseen |= rounds
        self.engine.foresee([self._foreseen.get(run, ()) for run in range(len(self._runs))])
        for run, of_run in rounds.items():
            ahead = self.engine.runs_ahead and self._runs[run].store.where != "disk"
            order = dict.fromkeys([*(k for clients in of_run for k in clients), *self._runs[run].setting.members])
            self._runs[run].draw_initial([k for k in order if k not in begun[run]], ahead)

    def train(self, round_: Round, requests: Sequence[Request], upcoming: Sequence[Request] = ()) -> list[Reply | NoReply]:
        """See `Clients`; simulated clients always reply."""
        turns = [self._turn(request) for request in requests]
        then = [Turn(r.client, {}, None, r.earlier, r.run) for r in upcoming]
        trained = self.engine.train(round_, turns, then)
        return [self._reply(round_, turn, result) for turn, result in zip(turns, trained, strict=True)]

    def evaluate(self, requests: Sequence[Request], modes: Sequence[str]) -> list[Score]:
        """See `Clients`."""
        turns = [self._turn(request) for request in requests]
        counts = self.engine.evaluate(turns, modes)
        return [Score(turn.client, correct, turn.run) for turn, correct in zip(turns, counts, strict=True)]

    def _turn(self, request: Request) -> Turn:
        state = self.state(request.client, request.since, request.run)
        return Turn(request.client, state, request.content, request.earlier, request.run)

    def _reply(self, round_: Round, turn: Turn, trained: Trained) -> Reply:
        run = self._runs[turn.run]
        if self.runs_ahead or not trained.broken:  # a diverged state is dropped, unless the check would wait for the device
            run.store.keep(turn.client, round_.index, trained.state)
        flops = run.flops.of_round(turn.client, turn.earlier)
        upload = run.setting.terms.leaving(trained.upload, turn.received, round_, turn.client)
        return Reply(turn.client, upload, trained.told, flops, turn.run)

    def state(self, client: int, since: int | None = None, run: int = 0) -> Tensors:
        """A client's state after a round, or its initial state."""
        return self._runs[run].load(client, since)

    def keep(self, client: int, since: int | None, state: Tensors, run: int = 0) -> None:
        """Takes over a client's state after a round."""
        self._runs[run].store.keep(client, since, state)

    def confirm(self, run: int, since: Since) -> None:
        """See `Clients`."""
        for client, round_ in since.items():
            self._runs[run].store.drop_others(client, round_)

    def save(self, run: int, since: Since, folder: Path) -> Mapping[int, StateFile]:
        """See `Clients`."""
        return self._runs[run].store.save(since, folder)

    def restore(self, run: int, since: Since, files: Mapping[int, StateFile]) -> None:
        """See `Clients`."""
        restore_states(self._runs[run].setting, self._runs[run].store, since, files)

    def states(self, run: int, since: Since) -> Iterator[tuple[int, Tensors]]:
        """See `Clients`."""
        store = self._runs[run].store
        return ((client, store.load(client, round_)) for client, round_ in since.items())

    def final_nets(self, run: int, states: FinalStates) -> FinalNets:
        """See `Clients`."""
        return final_nets_of(self._runs[run].setting, states)

    def facts(self, run: int) -> dict[str, Any]:
        """See `Clients`."""
        return facts_of(self._runs[run].setting, self._runs[run].store.where)

    def join(self, member: Member, run: int = 0) -> int:
        """Adds a client to a run between two rounds and returns its number, the next one."""
        number = max(self._runs[run].setting.members, default=-1) + 1
        self._runs[run].enrol(joined(self._runs[run].setting, number, member), number)
        self._start_engine()
        return number

    def close(self) -> None:
        """Stops the worker threads and closes the stores."""
        for run in self._runs:
            run.close()


class _Run:
    """The clients of one run."""

    def __init__(self, setting: Setting, store: AnyStore) -> None:
        self.setting, self.store = setting, store
        self.flops = FlopCounter(setting)
        self._start = setting.server_start()
        self._initial = InitialNets(setting, (), ahead=False)
        self.roster = roster_of(setting)

    @property
    def at_once(self) -> int:
        if self.store.where == "device":
            return Clients.at_once
        return max(1, _LOADED // max(1, size(self.load(next(iter(self.setting.members)), None)).bytes))

    def enrol(self, setting: Setting, number: int) -> None:
        self.setting = setting
        self.flops = FlopCounter(self.setting)
        self._initial.close()
        self._initial = InitialNets(self.setting, (), ahead=False)
        self.roster = {**self.roster, number: _enrolled(self.setting, number)}

    def draw_initial(self, clients: Sequence[int], ahead: bool) -> None:
        self._initial.close()
        self._initial = InitialNets(self.setting, clients, ahead)

    def load(self, client: int, since: int | None) -> Tensors:
        """A state on the device; the initial one is the client's initial weights with the server's initial shared part."""
        if since is not None or self.store.has(client, None):
            return self.store.load(client, since)
        net = self._initial.take(client)
        method = self.setting.method
        method.receive(net, method.answer(self._start, client, None))
        initial = copy(net.state_dict())
        if self.store.where != "disk":  # writing it would take as long as drawing it again
            self.store.keep(client, None, initial)
        return initial

    def close(self) -> None:
        self._initial.close()
        self.store.close()


def roster_of(setting: Setting) -> Roster:
    """What the server knows of each client."""
    return {client: _enrolled(setting, client) for client in setting.members}


def facts_of(setting: Setting, store: str) -> dict[str, Any]:
    """Entries for a run's result: where clients' states were kept, and their data."""
    data, split = setting.data, split_json([*setting.members.values()])
    small = setting.terms.common.small
    return {
        "store": store,
        "class_names": list(data.classes),
        "preparation": _preparation(setting),
        "small_model": ModelsTable(small=small).resolved_small if isinstance(small, Model) else None,
        "split_sha256": split_digest(split, len(setting.members)),
    }


def final_nets_of(setting: Setting, states: FinalStates) -> FinalNets:
    """What builds the final nets of a setting's clients."""
    models = {client: member.model for client, member in setting.members.items()}
    held = {client: setting.held(client) for client in setting.members}
    return FinalNets(setting.terms, models, held, _preparation(setting), states)


def _preparation(setting: Setting) -> Preparation:
    """How a run's data was prepared; its vocabulary is that of all models, whose embeddings may be larger than needed."""
    found = setting.data.preparation
    if found.vocabulary is None:
        return found
    parts = [part for client in setting.models.values() for part in setting.fresh_net(client).children()]
    embeddings = [[of for of in part.modules() if isinstance(of, nn.Embedding)] for part in parts]
    known = min((max(of.num_embeddings for of in several) for several in embeddings if several), default=0)
    return found.model_copy(update={"vocabulary": max(known, found.vocabulary)})


def restore_states(setting: Setting, store: AnyStore, since: Since, files: Mapping[int, StateFile]) -> None:
    """Takes over a checkpoint's states into the store; raises `UserError` if they do not fit the clients."""
    shapes: dict[ModelSpec, dict[str, list[int]]] = {}
    for client, round_ in since.items():
        if client not in setting.members or client not in files:
            what = "there is no client" if client in files else "it has no state of client"
            raise UserError(f"the checkpoint is damaged ({what} {client})")
        store.restore(client, round_, files[client])
        spec = setting.members[client].model
        if spec not in shapes:
            shapes[spec] = {name: list(t.shape) for name, t in setting.fresh_net(client).state_dict().items()}
        if store.shapes(client, round_) != shapes[spec]:
            raise OtherModelsError(
                f"client {client}'s state in the checkpoint does not fit its model ({spec.label}); "
                "resume with the models that the run was started with"
            )


def _enrolled(setting: Setting, client: int) -> Enrolled:
    member = setting.members[client]
    classes = Counter(setting.data.y[member.train].tolist())
    by_label = dict(sorted(classes.items()))
    return Enrolled(f"client {client}", member.model.label, len(member.train), len(member.test), by_label)

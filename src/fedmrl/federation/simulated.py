"""Simulated clients: trained on this machine by an engine, with their states in a store."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedmrl.data.partition import split_json
from fedmrl.engines import EngineChoice, Member, Setting, Trained, Turn, engine_for
from fedmrl.errors import UserError
from fedmrl.federation.clients import Clients, Enrolled, Reply, Request, Roster, Score, State
from fedmrl.federation.initial_weights import InitialNets
from fedmrl.federation.setup import check_member
from fedmrl.federation.store import DeviceStore, Kept, Store
from fedmrl.messages import Tensors, copy, sha256, size
from fedmrl.methods import Round
from fedmrl.metrics.flops import FlopCounter
from fedmrl.models import ModelSpec
from fedmrl.results import split_digest

_LOADED = 128 * 1024**2  # bytes of states fetched at once for an evaluation, unless they are on the device


class SimulatedClients(Clients):
    """The clients of one run, or of several runs with different seeds, which the engine trains together."""

    def __init__(
        self,
        settings: Sequence[Setting],
        engine: EngineChoice = "reference",
        stores: Sequence[Store] | None = None,
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

    def train(self, round_: Round, requests: Sequence[Request], upcoming: Sequence[Request] = ()) -> list[Reply]:
        """See `Clients`."""
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
        state = self.state(request.client, request.state, request.run)
        return Turn(request.client, state, request.content, request.earlier, request.run)

    def _reply(self, round_: Round, turn: Turn, trained: Trained) -> Reply:
        run = self._runs[turn.run]
        kept = None  # a diverged state is dropped, unless the check would wait for the device
        if self.runs_ahead or not trained.broken:
            kept = run.store.keep(turn.client, round_.index + 1, trained.state)
            run.unjoined.pop(turn.client, None)
        flops = run.flops.of_round(turn.client, turn.earlier)
        return Reply(turn.client, kept, trained.upload, trained.told, flops, turn.run)

    def state(self, client: int, state: State | None = None, run: int = 0) -> Tensors:
        """A client's state by its handle, or its initial state."""
        return self._runs[run].load(client, state)

    def release(self, run: int, state: State) -> None:
        """See `Clients`."""
        self._runs[run].store.forget(state)

    def digest(self, run: int, server: Tensors, states: Mapping[int, State]) -> str:
        """See `Clients`; leaves out clients that never took part, whose states follow from the seed."""
        load = self._runs[run].store.load
        return sha256([server, *(load(states[client]) for client in sorted(states))])

    def facts(self, run: int) -> dict[str, Any]:
        """See `Clients`."""
        setting = self._runs[run].setting
        data, split = setting.data, split_json([*setting.members.values()])
        return {
            "store": self._runs[run].store.where,
            "standardised_by": {"mean": data.mean.tolist(), "std": data.std.tolist()},
            "class_names": list(data.classes),
            "split_sha256": split_digest(split, len(setting.members)),
        }

    def check(self, states: Mapping[int, State], run: int = 0) -> None:
        """Raises `UserError` if states from a checkpoint do not fit the clients' models."""
        self._runs[run].check(states)

    def join(self, member: Member, run: int = 0) -> int:
        """Adds a client to a run between two rounds and returns its number, the next one."""
        number = max(self._runs[run].setting.members, default=-1) + 1
        check_member(self._runs[run].setting, number, member)
        self._runs[run].enrol(number, member)
        self._start_engine()
        return number

    def close(self) -> None:
        """Stops the worker threads and closes the stores."""
        for run in self._runs:
            run.close()


class _Run:
    """The clients of one run."""

    def __init__(self, setting: Setting, store: Store) -> None:
        self.setting, self.store = setting, store
        self.flops = FlopCounter(setting)
        self.unjoined: dict[int, Kept] = {}
        """Initial states, as far as drawn, of clients that have not taken part yet."""
        self._start = setting.server_start()
        self._initial = InitialNets(setting, (), ahead=False)
        self.roster = {client: _enrolled(setting, client) for client in setting.members}

    @property
    def at_once(self) -> int:
        if self.store.where == "device":
            return Clients.at_once
        return max(1, _LOADED // max(1, size(self.load(next(iter(self.setting.members)), None)).bytes))

    def enrol(self, number: int, member: Member) -> None:
        self.setting = replace(self.setting, members={**self.setting.members, number: member})
        self.flops = FlopCounter(self.setting)
        self._initial.close()
        self._initial = InitialNets(self.setting, (), ahead=False)
        self.roster = {**self.roster, number: _enrolled(self.setting, number)}

    def draw_initial(self, clients: Sequence[int], ahead: bool) -> None:
        self._initial.close()
        self._initial = InitialNets(self.setting, clients, ahead)

    def load(self, client: int, state: Kept | None) -> Tensors:
        """A state on the device; without one, the client's initial weights with the server's initial shared part."""
        if state is not None:
            return self.store.load(state)
        if client in self.unjoined:
            return self.store.load(self.unjoined[client])
        net = self._initial.take(client)
        method = self.setting.method
        method.receive(net, method.answer(self._start, client, None))
        initial = copy(net.state_dict())
        if self.store.where != "disk":  # writing it would take as long as drawing it again
            self.unjoined[client] = self.store.keep(client, 0, initial)
        return initial

    def check(self, states: Mapping[int, Kept]) -> None:
        shapes: dict[ModelSpec, dict[str, list[int]]] = {}
        for client, kept in states.items():
            if client not in self.setting.members:
                raise UserError(f"the checkpoint is damaged (there is no client {client}); start again in another folder")
            spec = self.setting.members[client].model
            if spec not in shapes:
                shapes[spec] = {name: list(t.shape) for name, t in self.setting.fresh_net(client).state_dict().items()}
            if self.store.shapes(kept) != shapes[spec]:
                raise UserError(
                    f"client {client}'s state in the checkpoint does not fit its model ({spec.label}); "
                    "resume with the models that the run was started with"
                )

    def close(self) -> None:
        self._initial.close()
        self.store.close()


def _enrolled(setting: Setting, client: int) -> Enrolled:
    member = setting.members[client]
    classes = Counter(setting.data.y[member.train].tolist())
    by_label = dict(sorted(classes.items()))
    return Enrolled(f"client {client}", member.model.label, len(member.train), len(member.test), by_label)

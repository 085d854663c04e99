"""Clients on a Ray cluster. Each sticks to one of its processes, where its state stays; messages and counts travel.

A state follows from an earlier one and the messages since. So states are not copied in advance: if a process is lost, its
clients' turns since the last checkpoint (or the start, if there is none) are repeated in other processes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedmrl.engines import Setting
from fedmrl.engines.reference import draws_in_training, threads_each
from fedmrl.export import FinalNets
from fedmrl.export.final_nets import FinalStates
from fedmrl.federation.clients import Clients, NoReply, Reply, Request, Roster, Score, Since
from fedmrl.federation.hosts import Host, Hosts, LostHostError, PastTurn, Ref, SentRequest, StateKey
from fedmrl.federation.simulated import facts_of, final_nets_of, restore_states, roster_of
from fedmrl.federation.store import DiskStore, largest_state
from fedmrl.messages import Tensors, sha256, size
from fedmrl.methods import Round
from fedmrl.states import StateFile

_FETCHED = 128 * 1024**2  # bytes of states fetched at once

Item = TypeVar("Item")
ClientKey = tuple[int, int]
"""A client's run and number."""


class ClusterClients(Clients):
    """The clients of one run, or of several, in the processes of a Ray cluster, each with a reference engine."""

    device = torch.device("cpu")

    def __init__(self, settings: Sequence[Setting], hosts: Hosts, folders: Sequence[Path | None]) -> None:
        """`folders` has the folder of each run's checkpoint, if there is one."""
        self._settings, self._hosts = settings, hosts
        self._rosters = [roster_of(setting) for setting in settings]
        self._saved = [DiskStore(self.device, folder) for folder in folders]
        """States in checkpoints."""
        self._turns: defaultdict[ClientKey, dict[int, PastTurn]] = defaultdict(dict)
        """Each client's turns since its saved state, by round."""
        self._home: dict[ClientKey, Host] = {}
        self._threads, self._one_by_one = torch.get_num_threads(), draws_in_training(settings[0])
        self._at_once = max(1, _FETCHED // largest_state(settings[0]))
        self._contents: dict[str | None, Ref] = {}
        """The last call's contents, by their SHA-256."""
        self.moved: Counter[str] = Counter()
        """Bytes of tensors sent, as `contents` (each counts once, for all nodes), `uploads` and `states`."""

    def roster(self, run: int = 0) -> Roster:
        """See `Clients`."""
        return self._rosters[run]

    def train(self, round_: Round, requests: Sequence[Request], upcoming: Sequence[Request] = ()) -> list[Reply | NoReply]:
        """See `Clients`; clients of a lost process reply from another one."""
        threads, sent = self._threads_each(len(requests)), self._sent(requests)
        for one in sent:
            self._turns[one.request.run, one.request.client][round_.index] = PastTurn(round_, one, threads)
        replies: list[Reply | NoReply] = self._ask(
            sent, lambda one: one.state, lambda host, part: host.actor.train.remote(round_, part, threads)
        )
        self.moved["uploads"] += sum(size(reply.upload).bytes for reply in replies if isinstance(reply, Reply))
        return replies

    def evaluate(self, requests: Sequence[Request], modes: Sequence[str]) -> list[Score]:
        """See `Clients`."""
        threads = self._threads_each(len(requests))
        return self._ask(
            self._sent(requests),
            lambda one: one.state,
            lambda host, part: host.actor.evaluate.remote(part, modes, threads),
        )

    def confirm(self, run: int, since: Since) -> None:
        """See `Clients`."""
        for host in set(self._home.values()):
            there = {client: round_ for client, round_ in since.items() if self._home.get((run, client)) is host}
            if there:
                host.actor.confirm.remote(run, there)

    def save(self, run: int, since: Since, folder: Path) -> Mapping[int, StateFile]:
        """See `Clients`; fetches the states that have changed."""
        saved = self._saved[run]
        changed = [client for client, round_ in since.items() if not saved.has(client, round_)]
        for client, state in self.states(run, {client: since[client] for client in changed}):
            saved.keep(client, since[client], state)
        for client in changed:
            saved.drop_others(client, since[client])
            turns = self._turns[run, client]
            self._turns[run, client] = {round_: turn for round_, turn in turns.items() if round_ > since[client]}
        return saved.save(since, folder)

    def restore(self, run: int, since: Since, files: Mapping[int, StateFile]) -> None:
        """See `Clients`; a state goes to a process when its client is first asked."""
        restore_states(self._settings[run], self._saved[run], since, files)

    def final_nets(self, run: int, states: FinalStates) -> FinalNets:
        """See `Clients`."""
        return final_nets_of(self._settings[run], states)

    def facts(self, run: int) -> dict[str, Any]:
        """See `Clients`."""
        return facts_of(self._settings[run], self._hosts.place)

    def close(self) -> None:
        """Deletes the copies of states outside runs' folders."""
        for saved in self._saved:
            saved.close()

    def _threads_each(self, requests: int) -> int:
        """The threads that a client has with the reference engine on this machine, for the same bits."""
        return self._threads if self._one_by_one else threads_each(self._threads, requests)

    def _sent(self, requests: Sequence[Request]) -> list[SentRequest]:
        """The requests, with their contents in Ray's object store: equal ones once, and not again if the last call had them."""
        digests = [None if request.content is None else sha256([request.content]) for request in requests]
        refs = {digest: self._contents[digest] for digest in digests if digest in self._contents}
        for request, digest in zip(requests, digests, strict=True):
            if request.content is not None and digest not in refs:
                refs[digest] = self._hosts.put(request.content)
                self.moved["contents"] += size(request.content).bytes
        self._contents = refs
        pairs = zip(requests, digests, strict=True)
        return [SentRequest(replace(request, content=None), refs.get(digest)) for request, digest in pairs]

    def states(self, run: int, since: Since) -> Iterator[tuple[int, Tensors]]:
        """See `Clients`; they come from files or their processes, some at a time."""
        saved = self._saved[run]
        clients = list(since)
        for some in (clients[first : first + self._at_once] for first in range(0, len(clients), self._at_once)):
            away = [StateKey(run, client, since[client]) for client in some if not saved.has(client, since[client])]
            fetched: list[Tensors] = self._ask(away, lambda key: key, lambda host, part: host.actor.states.remote(part))
            self.moved["states"] += sum(size(state).bytes for state in fetched)
            found = {key.client: state for key, state in zip(away, fetched, strict=True)}
            for client in some:
                yield client, found[client] if client in found else saved.load(client, since[client])

    # ---- asking processes, some of which may be lost ----

    def _ask(
        self, items: Sequence[Item], state_of: Callable[[Item], StateKey], call: Callable[[Host, list[Item]], Ref]
    ) -> list[Any]:
        """Each item's answer, from the process that has its state; what a lost process did not answer, others are asked."""
        found: dict[int, Any] = {}
        while left := [number for number in range(len(items)) if number not in found]:
            parts: defaultdict[Host, list[int]] = defaultdict(list)
            for number, host in zip(left, self._placed([state_of(items[number]) for number in left]), strict=True):
                parts[host].append(number)
            calls = {host: call(host, [items[number] for number in part]) for host, part in parts.items()}
            for host, ref in calls.items():
                try:
                    answers, cpu_seconds = self._hosts.answer(host, ref)
                except LostHostError as error:
                    self._home = {key: home for key, home in self._home.items() if home is not host}
                    self._hosts.lose(host, str(error))
                else:
                    found |= zip(parts[host], answers, strict=True)
                    self.cpu_seconds += cpu_seconds
        return [found[number] for number in range(len(items))]

    def _placed(self, states: Sequence[StateKey]) -> list[Host]:
        """The process of each client. A client without one gets the process with the fewest of these clients."""
        alive = self._hosts.alive()
        asked = Counter(self._home[key] for run, client, _ in states if (key := (run, client)) in self._home)
        placed = []
        for state in states:
            key = state.run, state.client
            if key not in self._home:
                host = min(alive, key=lambda host: (asked[host], host.clients))
                self._home[key], host.clients = host, host.clients + 1
                asked[host] += 1
                self._bring(state, host)
            placed.append(self._home[key])
        return placed

    def _bring(self, state: StateKey, host: Host) -> None:
        """Has a process make a client's state, from the saved one and the turns since."""
        run, client, since = state
        saved, turns = self._saved[run], []
        while since is not None and not saved.has(client, since):
            turns.append(self._turns[run, client][since])
            since = turns[-1].sent.request.since
        if since is not None:
            content = saved.load(client, since)
            self.moved["states"] += size(content).bytes
            host.ready.append(host.actor.take.remote(StateKey(run, client, since), content))
        if turns:
            host.ready.append(host.actor.repeat.remote(turns[::-1]))

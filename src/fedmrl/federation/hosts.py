"""The processes of a Ray cluster that hold clients: how many and where, what each does, and replacing those that are lost."""

import os
import platform
import signal
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from fedmrl.cpu import cpu_name
from fedmrl.engines import Setting
from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.federation.clients import Reply, Request, Score, Since
from fedmrl.federation.simulated import SimulatedClients
from fedmrl.federation.store import STATES_SHARE, Place, check_store, largest_state, make_store
from fedmrl.files import sha256_of
from fedmrl.memory import format_bytes
from fedmrl.messages import Tensors
from fedmrl.methods import Round
from fedmrl.registry import import_all, is_file
from fedmrl.version import __version__

_PROCESS = 512 * 1024**2  # bytes of a process that has loaded torch
_STATES_IN_TRAINING = 6  # weights, gradients, momentum, the new state, the upload and a copy
_START = 90.0  # seconds in which a process must have started
_LOSSES = 5  # in a row, without an answer between them

Ref = Any
"""A Ray object reference."""
_idle: list[tuple[Any, str]] = []
"""Processes of earlier runs, each with its node's id: starting one takes seconds."""


class SentRequest(NamedTuple):
    """A request whose content lies in Ray's object store, from which every process takes it once."""

    request: Request
    content: Ref | None

    @property
    def state(self) -> "StateKey":
        """The state from which the client continues."""
        return StateKey(self.request.run, self.request.client, self.request.since)


class PastTurn(NamedTuple):
    """A client's training in a round, which repeats bit for bit."""

    round_: Round
    sent: SentRequest
    threads: int


class StateKey(NamedTuple):
    """A client's state after a round (None: the initial one)."""

    run: int
    client: int
    since: int | None


class ClientHost:
    """Some of the clients, in a process of the cluster, with their states."""

    _clients: SimulatedClients | None = None

    def about(self, imports: Sequence[str]) -> "About":
        """Imports what the recipe imports, and returns what must be equal on all nodes."""
        warnings.filterwarnings(
            "ignore", "The given NumPy array is not writable"
        )  # the data in Ray's store, which nobody writes
        return About.here(imports)

    def hold(self, settings: Sequence[Ref], place: Place) -> None:
        """Prepares to hold clients of these runs."""
        torch.set_num_threads(1)  # one client after another; each call sets the threads of its clients
        try:
            loaded = ray_library().get(list(settings))
        except CODE_FAILS as error:
            raise UserError(
                f"a Ray node cannot load the method, the models or the data ({cause(error)}); install their modules on all "
                "nodes"
            ) from error
        stores = [make_store(place, torch.device("cpu"), None) for _ in loaded]
        self._clients = SimulatedClients(loaded, "reference", stores)

    def train(self, round_: Round, sent: Sequence[SentRequest], threads: int) -> tuple[list[Reply], float]:
        """The replies to these requests, and the CPU seconds that they took."""
        begun = _computing(threads)
        replies = self._held.train(round_, _received(sent))
        return [reply for reply in replies if isinstance(reply, Reply)], time.process_time() - begun

    def evaluate(self, sent: Sequence[SentRequest], modes: Sequence[str], threads: int) -> tuple[list[Score], float]:
        """The scores of these clients, and the CPU seconds that they took."""
        begun = _computing(threads)
        return self._held.evaluate(_received(sent), modes), time.process_time() - begun

    def repeat(self, turns: Sequence[PastTurn]) -> None:
        """Trains clients that another process held, as there."""
        for round_, sent, threads in turns:
            if sent.request.since is not None:
                self.confirm(sent.request.run, {sent.request.client: sent.request.since})
            self.train(round_, [sent], threads)

    def take(self, key: StateKey, state: Tensors) -> None:
        """Takes over a client's state."""
        self._held.keep(key.client, key.since, state, key.run)

    def states(self, keys: Sequence[StateKey]) -> tuple[list[Tensors], float]:
        """The states, for a checkpoint, and the CPU seconds that reading them took."""
        begun = time.process_time()
        return [self._held.state(key.client, key.since, key.run) for key in keys], time.process_time() - begun

    def confirm(self, run: int, since: Since) -> None:
        """Drops these clients' other states."""
        self._held.confirm(run, since)

    def close(self) -> None:
        """Deletes the states."""
        if self._clients is not None:
            self._clients.close()
        self._clients = None

    @property
    def _held(self) -> SimulatedClients:
        assert self._clients is not None, "hold comes first"
        return self._clients


def _computing(threads: int) -> float:
    """Sets the number of threads; returns the CPU seconds of this process."""
    torch.set_num_threads(threads)
    return time.process_time()


def _received(sent: Sequence[SentRequest]) -> list[Request]:
    """The requests with their content."""
    refs = list(dict.fromkeys(one.content for one in sent if one.content is not None))
    contents = dict(zip(refs, ray_library().get(refs), strict=True))
    return [replace(one.request, content=None if one.content is None else contents[one.content]) for one in sent]


@dataclass(frozen=True)
class About:
    """What must be equal on all nodes, for the same numbers: versions and imported files; and the CPU."""

    same: Mapping[str, str]
    cpu: str

    @classmethod
    def here(cls, imports: Sequence[str]) -> "About":
        """Of this process, after the imports."""
        import_all(imports)
        versions = {
            "Python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "fedmrl": __version__,
        }
        return cls({**versions, **{name: sha256_of(Path(name)) for name in imports if is_file(name)}}, cpu_name())

    def check(self, node: str, other: "About") -> None:
        """Raises `UserError` if a node has other versions than this machine."""
        for name, value in self.same.items():
            if other.same.get(name) != value:
                what = f"another {name}" if is_file(name) else f"{name} {other.same.get(name)}, and this machine {value}"
                raise UserError(f"the Ray node {node} has {what}; install the same on all nodes")


@dataclass(eq=False)
class Host:
    """A process that holds clients."""

    actor: Any
    node: str
    """The node's id."""
    name: str
    """The node's host name."""
    ready: list[Ref] = field(default_factory=list)
    """Calls that must have succeeded before it can be asked."""
    clients: int = 0
    """How many it holds."""


class LostHostError(Exception):
    """A process of the cluster, or its node, is gone."""


class Hosts:
    """The processes that hold clients: at first one for each CPU of the cluster, as far as there are clients and memory."""

    def __init__(
        self, settings: Sequence[Setting], imports: Sequence[str], store: str, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        check_store(store)
        self._tell, self._imports = tell, imports
        self._ray, self._reuses = connect()
        self._about = About.here(imports)
        self._cpus: dict[str, str] = {}
        """The CPU of each node."""
        self._clients = sum(len(setting.members) for setting in settings)
        self._state = max(map(largest_state, settings))
        self._needed = _PROCESS + settings[0].data.x.nbytes + _STATES_IN_TRAINING * self._state
        self._settings = self._put(settings)
        self._chosen: tuple[list[Ref], Place] | None = None
        self._alive: list[Host] = []
        self._starting: dict[Ref, Host] = {}
        self._losses, self._why = 0, ""
        try:
            self._start_missing()
            while self._starting and self._await(_START):
                pass
            self._check_started()
            self.place = self._choose(store)
        except BaseException:
            self.close()
            raise

    @property
    def device(self) -> str:
        """What the clients run on, for the result."""
        nodes = len({host.node for host in self._alive})
        cpus = ", ".join(sorted(set(self._cpus.values())))
        return f"{cpus}, {_count(len(self._alive), 'process')} of Ray on {_count(nodes, 'node')}"

    @property
    def notices(self) -> list[str]:
        """What was chosen, a line each."""
        by_node = Counter(host.node for host in self._alive)
        names = {host.node: host.name for host in self._alive}
        where = ", ".join(f"{number} on {names[node]}" for node, number in by_node.items())
        kept = "in memory" if self.place == "device" else "on disk"
        lines = [
            f"Ray: {_count(len(self._alive), 'process')} on {_count(len(by_node), 'node')} ({where}), each with one CPU and "
            f"{format_bytes(self._needed)} of memory, beside its clients' states, which it keeps {kept}: at most "
            f"{format_bytes(self._state * self._clients)} for {self._clients} clients"
        ]
        if len(set(self._cpus.values()) | {self._about.cpu}) > 1:
            lines.append("the nodes' CPUs differ from each other or from this one: numbers may differ in their last bits")
        return lines

    def hold(self, runs: Sequence[int]) -> None:
        """Has the processes hold the clients of these runs only."""
        self._chosen = [self._settings[run] for run in runs], self.place
        for host in self._alive:
            host.ready = [host.actor.hold.remote(*self._chosen)]

    def alive(self) -> list[Host]:
        """The processes that can be asked; waits for a new one if all are lost."""
        while self._starting and self._await(0 if self._alive else _START):
            pass
        if not self._alive:
            raise UserError(f"no process of the Ray cluster is left ({self._why}); resume the run once there is one")
        return list(self._alive)

    def answer(self, host: Host, ref: Ref) -> Any:
        """The value of a process's call; raises `LostHostError` if the process is gone."""
        exceptions = self._ray.exceptions
        gone = (
            exceptions.RayActorError, exceptions.ObjectLostError, exceptions.WorkerCrashedError, exceptions.NodeDiedError,
            exceptions.OutOfMemoryError,
        )  # fmt: skip
        try:
            with own_errors(self._ray):
                *_, value = self._ray.get([*host.ready, ref])
        except gone as error:
            raise LostHostError(_reason(error)) from error
        host.ready, self._losses = [], 0
        return value

    def lose(self, host: Host, why: str) -> None:
        """Counts a process as lost, and starts others where there are CPUs."""
        if host not in self._alive:
            return
        self._alive.remove(host)
        self._kill(host.actor)
        self._losses, self._why = self._losses + 1, why
        if self._losses > _LOSSES:
            raise UserError(f"{self._losses} processes of the Ray cluster were lost one after another ({why}); see Ray's logs")
        clients = _count(host.clients, "client")
        self._tell(f"a process of the Ray cluster on {host.name} is lost ({why}); its {clients} go on in others")
        self._start_missing()

    def close(self) -> None:
        """Ends the processes, unless the cluster is for fedmrl's runs alone: then the next run takes those that are there."""
        for host in self._alive:
            host.actor.close.remote()
        if self._reuses:
            _idle.extend((host.actor, host.node) for host in self._alive)
            self._alive = []
        for host in (*self._alive, *self._starting.values()):
            self._kill(host.actor)
        self._alive, self._starting, self._settings = [], {}, []

    def put(self, content: Tensors) -> Ref:
        """Puts a message's content into Ray's object store."""
        return self._ray.put(content)

    def _put(self, settings: Sequence[Setting]) -> list[Ref]:
        try:
            return [self._ray.put(setting) for setting in settings]
        except CODE_FAILS as error:
            raise UserError(
                "engine is 'ray', and the method, the models or the data cannot be sent to other processes "
                f"({cause(error.__cause__ or error)}); keep locks, open files and generators out of them"
            ) from error

    # ---- starting ----

    def _start_missing(self) -> None:
        """Starts a process on each CPU that has none, on the nodes with most left first."""
        own = Counter(host.node for host in (*self._alive, *self._starting.values()))
        slots = []
        for node in self._nodes():
            there = _room(node, self._needed)
            slots += [(number, node["NodeID"], node["NodeManagerHostname"]) for number in range(own[node["NodeID"]], there)]
        for _, node_id, name in sorted(slots)[: max(0, self._clients - own.total())]:
            self._start(node_id, name)

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _start(self, node: str, name: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if idle := next((one for one in _idle if one[1] == node), None):
            _idle.remove(idle)
            actor = idle[0]
        else:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            actor = self._ray.remote(ClientHost).options(num_cpus=1, scheduling_strategy=there).remote()
        self._starting[actor.about.remote(self._imports)] = Host(actor, node, name)

    def _await(self, seconds: float) -> bool:
        """Waits so long for a process to start; returns whether one has."""
        ready, _ = self._ray.wait(list(self._starting), num_returns=1, timeout=seconds)
        for ref in ready:
            self._welcome(self._starting.pop(ref), ref)
        return bool(ready)

    def _welcome(self, host: Host, ref: Ref) -> None:
        try:
            with own_errors(self._ray):
                about = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._why = _reason(error)
            if "No module named" in str(error):
                missing = str(error).rpartition("No module named")[2].split()[0].strip("'\".")
                raise UserError(f"the Ray node {host.name} has no module {missing}; install fedmrl on all nodes") from error
            self._losses += 1
            if self._losses <= _LOSSES:  # an idle one may be gone, or a node that still counts as alive
                self._start_missing()
            return
        self._about.check(host.name, about)
        self._cpus[host.node] = about.cpu
        self._alive.append(host)
        if self._chosen is not None:
            host.ready = [host.actor.hold.remote(*self._chosen)]

    def _check_started(self) -> None:
        waiting = [self._starting.pop(ref) for ref in list(self._starting)]
        for host in waiting:
            self._kill(host.actor)
        if not self._alive:
            why = f" ({self._why})" if self._why else ""
            raise UserError(
                f"no node of the Ray cluster has a free CPU and {format_bytes(self._needed)} of memory{why}; "
                "add nodes, or end what runs there"
            )
        if waiting:
            self._tell(
                f"{_count(len(waiting), 'process')} of the Ray cluster did not start in {_START:.0f} s; the run does without"
            )

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):  # it may be gone
            self._ray.kill(actor)

    def _choose(self, store: str) -> Place:
        """Where processes keep states: in memory if all nodes have room for their clients', else on their disks."""
        if store != "auto":
            return "disk" if store == "disk" else "device"
        each = self._state * self._clients / len(self._alive)
        by_node = Counter(host.node for host in self._alive)
        memory = {node["NodeID"]: node["Resources"].get("memory", 0) for node in self._nodes()}
        fits = all(number * each <= STATES_SHARE * memory.get(node, 0) for node, number in by_node.items())
        return "device" if fits else "disk"


def _room(node: Mapping[str, Any], needed: int) -> int:
    """How many processes a node has room for, beside the share of its memory that is for states."""
    resources = node["Resources"]
    return min(int(resources.get("CPU", 0)), int((1 - STATES_SHARE) * resources.get("memory", 0) // needed))


def _count(number: int, what: str) -> str:
    ending = "es" if what.endswith("s") else "s"
    return f"{number} {what}" if number == 1 else f"{number} {what}{ending}"


def _reason(error: Exception) -> str:
    """Ray's error as a clause."""
    kinds = {"NodeDiedError": "its node is gone", "OutOfMemoryError": "its node has run out of memory"}
    text = str(error)
    if "node" in text.lower() and ("died" in text or "dead" in text) and "worker" not in text.lower():
        return kinds["NodeDiedError"]
    return kinds.get(type(error).__name__, type(error).__name__)


@contextmanager
def own_errors(ray: ModuleType) -> Iterator[None]:
    """A context in which a `UserError` of another process is raised as here, without Ray's traceback."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise


def ray_library() -> ModuleType:
    """Ray, which is an extra."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    try:
        with _signals_kept():
            import ray
    except ImportError as error:
        raise UserError("engine is 'ray', and Ray is not installed; install it with: pip install 'fedmrl[ray]'") from error
    return cast(ModuleType, ray)


def connect() -> tuple[ModuleType, bool]:
    """Connects to the cluster at RAY_ADDRESS, or starts one on this machine, unless this process has one already.

    Returns Ray, and whether the connection is fedmrl's own.
    """
    global _ours  # noqa: PLW0603, Ray has one connection for the whole process, too
    ray = ray_library()
    if ray.is_initialized():
        return ray, _ours
    _idle.clear()
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise UserError(
            f"RAY_ADDRESS is {address!r}, a client's address; start fedmrl on a machine of the cluster, with the address of "
            "its head node, as in 192.0.2.1:6379"
        )
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of several processes that fail, the first is reported
    local = {"include_dashboard": False} if address == "local" else {}
    try:
        _check_listens(address)
        with _signals_kept():
            ray.init(address=address, logging_level="ERROR", log_to_driver=False, **local)
    except CODE_FAILS as error:
        if address == "local":
            raise UserError(f"Ray does not start on this machine ({cause(error)})") from error
        if "Version mismatch" in str(error):
            raise UserError(
                f"the Ray cluster at RAY_ADDRESS ({address}) has another version of Ray or Python than this machine; "
                "install the same on both"
            ) from error
        raise UserError(
            f"no Ray cluster answers at RAY_ADDRESS ({address}, {cause(error)}); start one with 'ray start --head', or unset "
            "RAY_ADDRESS for one on this machine"
        ) from error
    _ours = True
    return ray, True


def _check_listens(address: str) -> None:
    """Raises `OSError` if nothing listens there; Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        with socket.create_connection((host, int(port)), timeout=10):
            pass


_ours = False
"""Whether fedmrl has made the connection."""


@contextmanager
def _signals_kept() -> Iterator[None]:
    """A context that puts the handler of SIGTERM back, which Ray replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)

"""A whole federation on this machine, for demonstrations and tests: server, agents and SuperNodes as child processes."""

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from fedmrl.errors import UserError
from fedmrl.flower import programs
from fedmrl.flower.client_folder import ClientFolder
from fedmrl.flower.server_folder import ServerFolder
from fedmrl.results.result import ended

Process = subprocess.Popen[bytes]
_ENDED = "finished:"
_ASK = 15.0  # seconds between two questions to Flower, each of which starts a program
_MARK = "FEDMRL_LOCAL"


class LocalFederation:
    """A server and clients in a folder. As a context, it ends all their processes."""

    def __init__(self, folder: Path, clients: Sequence[Path], settings: Mapping[str, float] | None = None) -> None:
        self.folder = folder.resolve()
        self.ports = free_ports(1 + len(clients))
        self.server = ServerFolder.create(self.folder / "server", ["127.0.0.1"], "127.0.0.1", self.ports[0])
        self.configure(settings or {})
        self.clients = [ClientFolder.opened(path) for path in clients]
        self.threads = max(1, (os.cpu_count() or 1) // len(clients))
        """Of each agent: more threads than cores slow each other down."""
        self.superlink: Process | None = None
        self.agents: dict[int, Process] = {}
        self.supernodes: dict[int, Process] = {}
        self._started: list[Process] = []
        self._token = secrets.token_hex(16)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def configure(self, settings: Mapping[str, float]) -> None:
        """Changes the server's settings, for the runs that start from now on."""
        config = self.server.path / "server.toml"
        kept = [line for line in config.read_text().splitlines() if line.partition("=")[0].strip() not in settings]
        config.write_text("\n".join([*kept, *(f"{key} = {value}" for key, value in settings.items()), ""]))

    def stop(self) -> None:
        """Ends all processes, and those that Flower's programs started: they outlive a parent that was killed by a minute."""
        programs.stop(self._started)
        until = time.monotonic() + 10
        while (left := self.descendants()) and time.monotonic() < until:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def descendants(self) -> list[int]:
        """The processes whose environment has this federation's mark."""
        mark, found = f"{_MARK}={self._token}\0".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def start(self) -> None:
        """Starts the server, registers the clients, and starts them."""
        self.start_server()
        for number in range(len(self.clients)):
            self.register(number)
            self.start_agent(number)
            self.start_supernode(number)

    def start_server(self) -> None:
        """Starts the server and waits until it answers."""
        command, env = self.server.start()
        self.superlink = self._child(command, env, "superlink")
        self._until(lambda: _listens(self.ports[0]), self.superlink, "superlink", 60)

    def register(self, number: int, name: str | None = None) -> None:
        """Makes a client's key and registers it."""
        client = self.clients[number]
        client.connect(self.server.address, self.server.authority, self.ports[1 + number])
        self.server.register(name or client.config().name, client.public_key)

    def start_agent(self, number: int) -> None:
        """Starts a client's agent and waits for its socket."""
        client = self.clients[number]
        self.agents[number] = self._child(
            client.agent(), {**os.environ, "OMP_NUM_THREADS": str(self.threads)}, f"agent-{number}"
        )
        path = client.config().socket
        self._until(lambda: _answers(path), self.agents[number], f"agent-{number}", 120)

    def start_supernode(self, number: int) -> None:
        """Starts a client's SuperNode."""
        command, env = self.clients[number].supernode()
        self.supernodes[number] = self._child(command, env, f"supernode-{number}")

    def wait(self, name: str, run_id: str, seconds: float, on_poll: Callable[[], None] = lambda: None) -> str:
        """Waits until a run has ended and returns Flower's status of it; calls `on_poll` meanwhile."""
        until, ask = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < until:
            on_poll()
            if now >= ask or ended(self.server.runs / name):
                status, ask = self.server.flower_status(run_id), now + _ASK
                if status.startswith(_ENDED):
                    return status.removeprefix(_ENDED)
            time.sleep(1)
        raise UserError(f"run {name} has not ended within {seconds:g} seconds")

    def _child(self, command: Sequence[str], env: Mapping[str, str], name: str) -> Process:
        with (self.folder / f"{name}.log").open("ab") as log:
            # A session of its own: Ctrl-C reaches this process only, which then ends its children in order.
            process = subprocess.Popen(
                list(command),
                env={**env, _MARK: self._token},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _until(self, ready: Callable[[], bool], process: Process, name: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not ready():
            if process.poll() is not None or time.monotonic() > until:
                last = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1:]
                raise UserError(f"{name} did not start: {last[0] if last else 'it said nothing'} (see {self.folder})")
            time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nothing listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True

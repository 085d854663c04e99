"""A whole federation on loopback that stays up for many tests: its clients, the moments at which faults are made, checks."""

import json
import os
import signal
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path

import tomli_w
from in_process import simulated
from tiny import ALL_METHODS, tiny_recipe

from fedmrl.flower.deal import deal
from fedmrl.flower.local import LocalFederation
from fedmrl.flower.server_folder import run_recipe
from fedmrl.results import RunResult, read_records

PATIENCE = 400
"""Seconds for anything to happen: more than it takes on a machine that does other things as well."""
ROUND = 300.0
"""Seconds of a round that nobody is meant to miss."""
LEAVES = ["small.", "local.header.", "classes", "outputs", "prototypes", "counts"]


def small(method="fedmrl", **settings):
    return tiny_recipe(method, **{"rounds": 4, "clients": 3, "participation": 1.0, "evaluation__every": 100, **settings})


def until(ready, what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < end, f"{what} took too long"
        time.sleep(0.02)
    return found


def kill(process):
    process.kill()
    process.wait()


class Whole(LocalFederation):
    """A federation of three clients, for many runs; of its clients only the first two take part from the beginning."""

    def __init__(self, folder):
        paths = deal(small(), folder / "clients")
        for path in paths:
            file = path / "client.toml"
            plain = tomllib.loads(file.read_text())
            plain["bounds"] |= {"methods": list(ALL_METHODS), "leaves": LEAVES, "max_runs": 100}
            file.write_text(tomli_w.dumps(plain))
        super().__init__(folder / "federation", paths)
        self.name, self.run_id = "", ""

    def start(self):
        self.start_server()
        for number in (0, 1):
            self.add(number)

    def add(self, number):
        """Registers a client and starts it."""
        self.register(number)
        self.start_agent(number)
        self.start_supernode(number)

    def mend(self):
        """Starts what does not run, after a test has failed or before the third client has come."""
        for pid in self.program("flwr-serverapp"):
            os.kill(pid, signal.SIGKILL)
        if self.superlink.poll() is not None:
            self.start_server()
        for number in range(3):
            if number not in self.supernodes:
                self.add(number)
            if self.agents[number].poll() is not None:
                self.start_agent(number)
            self.agents[number].send_signal(signal.SIGCONT)
        self.until_connected(0, 1, 2)

    def begin(self, name, recipe, clients=3, **settings):
        """Starts a run."""
        self.configure({"round_seconds": ROUND, "min_clients": 2, "pause_seconds": 1.0, "wait_seconds": 120.0, **settings})
        self.name = name
        self._start(run_recipe(recipe, clients))

    def resume(self):
        """Goes on with the run."""
        self._start()

    def _start(self, recipe=None):
        """Starts a ServerApp, again if Flower's own start of it fails, as it may on a busy machine."""
        for attempt in range(3):
            self.run_id = self.server.run(self.name, None if attempt else recipe)
            status = until(self._status_after_start, "starting")
            if status == "running":
                return

    def _status_after_start(self):
        status = self.server.flower_status(self.run_id)
        return None if status in ("pending", "starting") else status

    # ---- where the run is ----

    def records(self):
        path = self.server.runs / self.name / "rounds.jsonl"
        return read_records(path) if path.exists() else []

    def until_round(self, number):
        """Returns at once when this round, counted from 1, is complete."""
        until(lambda: len(self.records()) >= number, f"round {number}")

    def until_trained(self, *clients):
        """Waits until these clients have trained in a round that is not complete."""
        until(lambda: all(self._last_round(client) >= len(self.records()) for client in clients), "training")

    def _last_round(self, client):
        found = list((self.clients[client].path / "state" / "runs").glob(f"{self.name}-*/index.json"))
        return json.loads(found[0].read_text())["last_round"] if found else -1

    def left_out(self):
        return {client for record in self.records() for client in (one.client for one in record.left_out)}

    def until_left_out(self, client):
        until(lambda: client in self.left_out(), f"leaving out client {client}")

    def program(self, name):
        """The processes of one of Flower's programs."""
        found = []
        for pid in self.descendants():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.endswith(name.encode()) for word in words[:2]):
                found.append(pid)
        return found

    def until_connected(self, *clients):
        """Waits until these SuperNodes are connected. A key that was in use is refused until the server misses its node."""

        def connected():
            for number in clients:
                if self.supernodes[number].poll() is not None:
                    self.start_supernode(number)
            time.sleep(2)
            nodes = self.server._flwr("supernode", "list")["nodes"]
            return sum(node["status"] == "online" for node in nodes) >= len(clients)

        until(connected, "connecting")

    # ---- faults ----

    @contextmanager
    def held(self, client=0):
        """No round ends meanwhile, as this client's agent is stopped."""
        self.agents[client].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.agents[client].send_signal(signal.SIGCONT)

    @contextmanager
    def within_a_round(self, client):
        """A moment at which this client has a request that it has not answered, and the others have answered theirs."""
        others = {0, 1, 2} - {client}
        with self.held(client):
            # If it had answered already, the next round is the one.
            until(
                lambda: (
                    self._last_round(client) < len(self.records())
                    and all(self._last_round(k) >= len(self.records()) for k in others)
                ),
                "a round",
            )
            yield

    # ---- the end ----

    def result(self, resume=False):
        """The result of the run, which is resumed as often as needed if `resume`."""
        for _ in range(4):
            if self.wait(self.name, self.run_id, PATIENCE) == "completed":
                return RunResult.read(self.server.runs / self.name)
            assert resume, self.server.log(self.name)
            self.resume()
        raise AssertionError(self.server.log(self.name))


def check(result, recipe, folder):
    """The result is that of a simulation with exactly these participants, for the clients that have joined."""
    participation = folder / "participation.json"
    participation.write_text(json.dumps([record.participants for record in result.records]))
    reference = simulated(recipe.model_copy(update={"participation": str(participation)}))
    assert [record.loss for record in result.records] == [record.loss for record in reference.records]
    rows = result.clients.rows()
    members = [row["client"] for row in rows]
    assert rows == [row for row in reference.clients.rows() if row["client"] in members]
    if len(members) == recipe.clients:
        assert result.inference == reference.inference

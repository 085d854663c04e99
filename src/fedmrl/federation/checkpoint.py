"""Checkpoints: a run's last complete round in safetensors and JSON, replaced atomically."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from pydantic import NonNegativeInt, PositiveInt, ValidationError, model_validator

from fedmrl.errors import UserError
from fedmrl.federation.clients import OtherModelsError, Since, StateFile
from fedmrl.federation.store import read_state, write_state
from fedmrl.files import check_sha256, sha256_of, write_whole
from fedmrl.messages import Tensors
from fedmrl.results import Record
from fedmrl.schema import Part, first_problem

SaveStates = Callable[[Since, Path], Mapping[int, StateFile]]
"""Writes the clients' states after these rounds into a folder."""
Restore = Callable[[Since, Mapping[int, StateFile]], None]
"""Hands clients the states of a checkpoint; raises `UserError` if they do not fit."""


@dataclass(frozen=True)
class Snapshot:
    """A federation after a complete round. Each round makes a new one, so an interruption never leaves it half updated."""

    rounds: int
    server: Tensors
    last_round: Since = field(default_factory=dict)
    """The last round in which each client took part, after which it kept its state."""
    times: Mapping[int, int] = field(default_factory=dict)
    """In how many rounds each client took part."""
    records: tuple[Record, ...] = ()
    seconds: float = 0.0
    """Run time so far, without interruptions."""
    cpu_seconds: float = 0.0
    """CPU time of all cores over the same period."""
    engines: tuple[str, ...] = ()
    """Engines used so far, each once: a run may be resumed with another."""
    devices: tuple[str, ...] = ()


class _Index(Part):
    """`state.json`."""

    rounds: NonNegativeInt
    server: str
    clients: dict[NonNegativeInt, str]
    """The file of each client's state; empty if clients keep their states elsewhere."""
    last_round: dict[NonNegativeInt, NonNegativeInt]
    times: dict[NonNegativeInt, PositiveInt]
    seconds: float = 0
    cpu_seconds: float = 0
    engines: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    files: dict[str, str] | None = None
    """SHA-256 of each file that resuming reads, by its path in the run's folder; None in folders of older versions."""
    sha256: str | None = None
    """SHA-256 of the index without this field."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.last_round.keys() != self.times.keys() or self.clients.keys() not in ({}.keys(), self.times.keys()):
            raise ValueError("clients, last_round and times list different clients")
        if any(last >= self.rounds for last in self.last_round.values()):
            raise ValueError("last_round is after the last round")
        if (self.files is None) is not (self.sha256 is None):
            raise ValueError("its checksums are missing")
        if self.files is not None and not {self.server, *self.clients.values()} <= self.files.keys():
            raise ValueError("the checksum of a state is missing")
        return self


class Checkpoint:
    """The folder `checkpoint/`: one file for the server and one per client; `state.json` lists the current ones, with the
    SHA-256 of each, of the run's other files and of itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._saved: Snapshot | None = None

    def save(self, snapshot: Snapshot, states_of: SaveStates, other_files: Mapping[str, str]) -> None:
        """Writes changed states, then replaces `state.json`, then deletes obsolete files.

        `other_files` has the SHA-256 of the run's other files, by name.
        """
        if snapshot is self._saved:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        states = dict(sorted(states_of(snapshot.last_round, self.folder).items()))
        server = write_state(snapshot.server, self.folder / f"server-round-{snapshot.rounds:05d}.safetensors")
        index = {
            "rounds": snapshot.rounds,
            "server": server.path.name,
            "clients": {str(client): file.path.name for client, file in states.items()},
            "last_round": {str(client): r for client, r in snapshot.last_round.items()},
            "times": {str(client): n for client, n in snapshot.times.items()},
            "seconds": snapshot.seconds,
            "cpu_seconds": snapshot.cpu_seconds,
            "engines": snapshot.engines,
            "devices": snapshot.devices,
            "files": {**other_files, **{f.path.name: f.sha256 or sha256_of(f.path) for f in (server, *states.values())}},
        }
        write_whole(self.folder / "state.json", json.dumps({**index, "sha256": _digest(index)}, indent=1))
        current = {file.path.name for file in (server, *states.values())}
        for path in self.folder.glob("*.safetensors"):
            if path.name not in current:
                path.unlink()
        self._saved = snapshot

    def drop(self) -> None:
        """Deletes the checkpoint, `state.json` first, so that an interruption does not leave a damaged one."""
        (self.folder / "state.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def load(self, device: torch.device) -> "Loaded | None":
        """The last checkpoint, whose clients' states are still in their files; None if there is none."""
        path = self.folder / "state.json"
        if not path.exists():
            return None
        with self.damage_told():
            try:
                state = _Index.model_validate_json(content := path.read_bytes())
            except ValidationError as error:
                raise UserError(f"{path} is damaged ({first_problem(error)})") from error
            if state.sha256 is not None:
                plain = json.loads(content)
                check_sha256(path, _digest({key: value for key, value in plain.items() if key != "sha256"}), state.sha256)
            known = state.files or {}
            snapshot = Snapshot(
                state.rounds,
                read_state(StateFile(self.folder / state.server, known.get(state.server, "")), device),
                state.last_round,
                state.times,
                seconds=state.seconds,
                cpu_seconds=state.cpu_seconds,
                engines=state.engines,
                devices=state.devices,
            )
        files = {client: StateFile(self.folder / name, known.get(name, "")) for client, name in state.clients.items()}
        other_files = {name: digest for name, digest in known.items() if not name.endswith(".safetensors")}
        return Loaded(snapshot, files, None if state.files is None else other_files)

    @contextmanager
    def damage_told(self) -> Iterator[None]:
        """A context in which whatever fails becomes a sentence that says that the run cannot be resumed."""
        instead = "the run cannot be resumed, start it again in another folder"
        try:
            yield
        except OtherModelsError:
            raise
        except UserError as error:
            raise UserError(f"{error}; {instead}") from error
        except Exception as error:
            raise UserError(f"{self.folder} is damaged ({type(error).__name__}: {error}); {instead}") from error


class Loaded(NamedTuple):
    """What a checkpoint holds."""

    snapshot: Snapshot
    """Without its records."""
    files: Mapping[int, StateFile]
    """The file of each client's state."""
    other_files: Mapping[str, str] | None
    """The SHA-256 of the run's other files, by name; None in folders of older versions."""


def _digest(index: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()

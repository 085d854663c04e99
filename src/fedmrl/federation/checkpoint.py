"""Checkpoints: a run's last complete round in safetensors and JSON, replaced atomically."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from fedmrl.errors import UserError
from fedmrl.federation.clients import OtherModelsError, Since
from fedmrl.files import sha256_of, sha256_of_json, write_whole
from fedmrl.messages import Tensors
from fedmrl.results import Record
from fedmrl.states import INDEX, StateFile, read_index, read_state, write_state

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
        write_whole(self.folder / INDEX, json.dumps({**index, "sha256": sha256_of_json(index)}, indent=1))
        current = {file.path.name for file in (server, *states.values())}
        for path in self.folder.glob("*.safetensors"):
            if path.name not in current:
                path.unlink()
        self._saved = snapshot

    def drop(self) -> None:
        """Deletes the checkpoint, `state.json` first, so that an interruption does not leave a damaged one."""
        (self.folder / INDEX).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def load(self, device: torch.device) -> "Loaded | None":
        """The last checkpoint, whose clients' states are still in their files; None if there is none."""
        with self.damage_told():
            state = read_index(self.folder)
            if state is None:
                return None
            snapshot = Snapshot(
                state.rounds,
                read_state(state.file(self.folder, state.server), device),
                state.last_round,
                state.times,
                seconds=state.seconds,
                cpu_seconds=state.cpu_seconds,
                engines=state.engines,
                devices=state.devices,
            )
        files = {client: state.file(self.folder, name) for client, name in state.clients.items()}
        other_files = {name: digest for name, digest in (state.files or {}).items() if not name.endswith(".safetensors")}
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

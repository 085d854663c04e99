"""Clients' and servers' states as files, and the index of those that a run's folder has."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from pydantic import NonNegativeInt, PositiveInt, ValidationError, model_validator
from safetensors.torch import load, save

from fedmrl.errors import UserError
from fedmrl.files import check_sha256, replacing, sha256_of_json
from fedmrl.messages import Tensors
from fedmrl.schema import Part, first_problem

INDEX = "state.json"


class StateFile(NamedTuple):
    """A file that holds a state, and its SHA-256 (empty if written by an older version)."""

    path: Path
    sha256: str


def write_state(state: Tensors, path: Path) -> StateFile:
    """Writes a state as safetensors, atomically."""
    content = save(state)
    with replacing(path) as part:
        part.write_bytes(content)
    return StateFile(path, hashlib.sha256(content).hexdigest())


def read_state(file: StateFile, device: torch.device) -> Tensors:
    """Reads a state onto the device, after checking its SHA-256."""
    content = file.path.read_bytes()
    check_sha256(file.path, hashlib.sha256(content).hexdigest(), file.sha256)
    return {name: tensor.to(device, copy=True) for name, tensor in load(content).items()}


class StateIndex(Part):
    """`state.json`: the files that hold a run's states after its last checkpoint."""

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

    def file(self, folder: Path, name: str) -> StateFile:
        """One of its files."""
        return StateFile(folder / name, (self.files or {}).get(name, ""))


def read_index(folder: Path) -> StateIndex | None:
    """Reads the index in a folder, after checking its SHA-256; None if there is none."""
    path = folder / INDEX
    if not path.exists():
        return None
    try:
        index = StateIndex.model_validate_json(content := path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path} is damaged ({first_problem(error)})") from error
    if index.sha256 is not None:
        plain: Mapping[str, Any] = json.loads(content)
        check_sha256(path, sha256_of_json({key: value for key, value in plain.items() if key != "sha256"}), index.sha256)
    return index

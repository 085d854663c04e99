"""Stores for clients' private states between rounds: on the device, in the host's memory or on disk."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Literal, cast

import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save

from fedmrl.engines import Setting
from fedmrl.errors import UserError
from fedmrl.files import check_sha256, replacing, sha256_of
from fedmrl.memory import format_bytes, free_bytes
from fedmrl.messages import Tensors, size

Place = Literal["device", "host", "disk"]


@dataclass(frozen=True)
class StateFile:
    """A file that holds a state, and its SHA-256 (empty if written by an older version)."""

    path: Path
    sha256: str


Kept = Tensors | StateFile
"""A state as a store keeps it: its tensors, or the file that holds them."""

_SHARE = 0.4  # share of the memory free at the start that states may take


class Store(ABC):
    """Keeps clients' states between their rounds."""

    where: ClassVar[str]

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def keep(self, client: int, rounds: int, state: Tensors) -> Kept:
        """Stores a client's state after the given number of rounds."""

    @abstractmethod
    def load(self, kept: Kept) -> Tensors:
        """The state, on the device."""

    @abstractmethod
    def restore(self, file: StateFile) -> Kept:
        """Reads a state from a checkpoint's file, after checking its SHA-256."""

    @abstractmethod
    def shapes(self, kept: Kept) -> dict[str, list[int]]:
        """The shapes of the state's tensors."""

    def forget(self, kept: Kept) -> None:  # noqa: B027, an optional hook
        """Drops a state that a newer one has replaced."""

    def close(self) -> None:  # noqa: B027
        """Frees resources when the run is over."""


class DeviceStore(Store):
    """Keeps states on the device."""

    where: ClassVar[str] = "device"

    def keep(self, client: int, rounds: int, state: Tensors) -> Kept:
        """See `Store`."""
        return state

    def load(self, kept: Kept) -> Tensors:
        """See `Store`."""
        assert isinstance(kept, dict)
        return kept

    def restore(self, file: StateFile) -> Kept:
        """See `Store`."""
        return read_state(file, self.device)

    def shapes(self, kept: Kept) -> dict[str, list[int]]:
        """See `Store`."""
        return {name: list(tensor.shape) for name, tensor in self.load(kept).items()}


class HostStore(DeviceStore):
    """Keeps states in the host's memory."""

    where: ClassVar[str] = "host"

    def keep(self, client: int, rounds: int, state: Tensors) -> Kept:
        """See `Store`."""
        return {name: tensor.to("cpu") for name, tensor in state.items()}

    def load(self, kept: Kept) -> Tensors:
        """See `Store`."""
        assert isinstance(kept, dict)
        return {name: tensor.to(self.device, copy=True) for name, tensor in kept.items()}

    def restore(self, file: StateFile) -> Kept:
        """See `Store`."""
        return read_state(file, torch.device("cpu"))


class DiskStore(Store):
    """Keeps each state as a safetensors file, in the run's checkpoint if there is one."""

    where: ClassVar[str] = "disk"

    def __init__(self, device: torch.device, folder: Path | None) -> None:
        super().__init__(device)
        self._own = TemporaryDirectory(prefix="fedmrl-") if folder is None else None
        self.folder = Path(self._own.name) if self._own else folder or Path()

    def keep(self, client: int, rounds: int, state: Tensors) -> Kept:
        """See `Store`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return write_state(state, self.folder / file_name(client, rounds))

    def load(self, kept: Kept) -> Tensors:
        """See `Store`."""
        assert isinstance(kept, StateFile)
        return load_file(kept.path, device=str(self.device))

    def restore(self, file: StateFile) -> Kept:
        """See `Store`; the file stays where it is."""
        check_sha256(file.path, sha256_of(file.path), file.sha256)
        with safe_open(file.path, "pt"):
            return file

    def shapes(self, kept: Kept) -> dict[str, list[int]]:
        """See `Store`."""
        assert isinstance(kept, StateFile)
        with safe_open(kept.path, "pt") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118, not a dict

    def forget(self, kept: Kept) -> None:
        """See `Store`; in a run's folder, `Checkpoint` deletes the file."""
        if self._own and isinstance(kept, StateFile):
            kept.path.unlink(missing_ok=True)

    def close(self) -> None:
        """See `Store`; files outside a run's folder are deleted."""
        if self._own:
            self._own.cleanup()


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


def file_name(client: int, rounds: int) -> str:
    """The file name of a client's state after the given number of rounds."""
    return f"client-{client:05d}-round-{rounds:05d}.safetensors"


def check_store(where: str) -> None:
    """Raises `UserError` for an unknown store."""
    if not isinstance(where, str) or where not in ("auto", "device", "host", "disk"):
        raise UserError(f"store is {where!r}; choose auto, device, host or disk")


def choose(where: str, setting: Setting, clients: int) -> tuple[Place, str]:
    """The store for the states of `clients` clients (auto: the first in which they fit), and a line that reports it."""
    device, host = setting.device, torch.device("cpu")
    largest = max(size(setting.fresh_net(client).state_dict()).bytes for client in setting.models.values())
    needed = largest * clients
    if where == "auto":
        fits = {"device": needed <= _SHARE * free_bytes(device), "host": needed <= _SHARE * free_bytes(host)}
        where = next((place for place, enough in fits.items() if enough), "disk")
    if where == "host" and device.type == "cpu":
        where = "device"
    in_memory = "in memory" if device.type == "cpu" else "on the GPU"
    there = {"device": in_memory, "host": "in the host's memory", "disk": "on disk"}[where]
    line = f"clients' states are kept {there}: at most {format_bytes(needed)} for {clients} clients"
    return cast(Place, where), line


def make_store(where: Place, device: torch.device, checkpoint: Path | None) -> Store:
    """Creates a store; on disk it writes into the run's checkpoint, if there is one."""
    if where == "disk":
        return DiskStore(device, checkpoint)
    return HostStore(device) if where == "host" else DeviceStore(device)

"""Stores for clients' private states between rounds: on the device, in the host's memory or on disk."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Generic, Literal, TypeVar, cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fedmrl.engines import Setting
from fedmrl.errors import UserError
from fedmrl.federation.clients import Since
from fedmrl.files import check_sha256, sha256_of
from fedmrl.memory import format_bytes, free_bytes
from fedmrl.messages import Tensors, size
from fedmrl.states import StateFile, read_state, write_state

Place = Literal["device", "host", "disk"]


STATES_SHARE = 0.4  # share of the memory free at the start that states may take
_AT_ONCE = 8  # files written in parallel
Kept = TypeVar("Kept", Tensors, StateFile)
"""A state as a store keeps it: its tensors, or the file that holds them."""


class Store(ABC, Generic[Kept]):
    """Keeps clients' states, each by its client and the round after which it was kept (None: the initial state)."""

    where: ClassVar[str]

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kept: dict[int, dict[int | None, Kept]] = {}
        self._files: dict[int, tuple[int, StateFile]] = {}
        """Each client's file in the checkpoint, with the round of its state."""

    def keep(self, client: int, since: int | None, state: Tensors) -> None:
        """Stores a client's state after a round."""
        self._kept.setdefault(client, {})[since] = self._stored(client, since, state)

    def has(self, client: int, since: int | None) -> bool:
        """Whether this state is stored."""
        return since in self._kept.get(client, {})

    def load(self, client: int, since: int | None) -> Tensors:
        """The state, on the device."""
        return self._loaded(self._kept[client][since])

    def shapes(self, client: int, since: int | None) -> dict[str, list[int]]:
        """The shapes of the state's tensors."""
        return {name: list(tensor.shape) for name, tensor in self.load(client, since).items()}

    def drop_others(self, client: int, since: int | None) -> None:
        """Drops all states of a client but one."""
        states = self._kept.get(client, {})
        for other in [other for other in states if other != since]:
            self._drop(states.pop(other))

    def restore(self, client: int, since: int, file: StateFile) -> None:
        """Takes over a state from a checkpoint's file, after checking its SHA-256."""
        self._kept[client], self._files[client] = {since: self._restored(file)}, (since, file)

    def save(self, since: Since, folder: Path) -> Mapping[int, StateFile]:
        """Writes the states after these rounds into the checkpoint's folder, as far as they are not there yet."""

        def file_of(client: int) -> StateFile:
            known, round_ = self._files.get(client), since[client]
            return known[1] if known and known[0] == round_ else self._saved(client, round_, folder)

        with ThreadPoolExecutor(_AT_ONCE) as pool:  # fsync is slow, and runs in parallel
            files = dict(zip(since, pool.map(file_of, since), strict=True))
        self._files = {client: (since[client], file) for client, file in files.items()}
        return files

    def close(self) -> None:
        """Frees resources when the run is over."""

    @abstractmethod
    def _stored(self, client: int, since: int | None, state: Tensors) -> Kept:
        """The state as this store keeps it."""

    @abstractmethod
    def _loaded(self, kept: Kept) -> Tensors:
        """The state, on the device."""

    @abstractmethod
    def _restored(self, file: StateFile) -> Kept:
        """Reads a file, after checking its SHA-256."""

    def _saved(self, client: int, since: int, folder: Path) -> StateFile:
        """Writes a state into the checkpoint's folder."""
        return write_state(self.load(client, since), folder / file_name(client, since))

    def _drop(self, kept: Kept) -> None:
        """Called with each state that is dropped."""


class DeviceStore(Store[Tensors]):
    """Keeps states on the device."""

    where: ClassVar[str] = "device"

    def _stored(self, client: int, since: int | None, state: Tensors) -> Tensors:
        return state

    def _loaded(self, kept: Tensors) -> Tensors:
        return kept

    def _restored(self, file: StateFile) -> Tensors:
        return read_state(file, self.device)


class HostStore(Store[Tensors]):
    """Keeps states in the host's memory."""

    where: ClassVar[str] = "host"

    def _stored(self, client: int, since: int | None, state: Tensors) -> Tensors:
        return {name: tensor.to("cpu") for name, tensor in state.items()}

    def _loaded(self, kept: Tensors) -> Tensors:
        return {name: tensor.to(self.device, copy=True) for name, tensor in kept.items()}

    def _restored(self, file: StateFile) -> Tensors:
        return read_state(file, torch.device("cpu"))


class DiskStore(Store[StateFile]):
    """Keeps each state as a safetensors file, in the run's checkpoint if there is one."""

    where: ClassVar[str] = "disk"

    def __init__(self, device: torch.device, folder: Path | None) -> None:
        super().__init__(device)
        self._own = TemporaryDirectory(prefix="fedmrl-") if folder is None else None
        self.folder = Path(self._own.name) if self._own else folder or Path()

    def shapes(self, client: int, since: int | None) -> dict[str, list[int]]:
        """See `Store`; reads the file's header only."""
        with safe_open(self._kept[client][since].path, "pt") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118, not a dict

    def close(self) -> None:
        """See `Store`; files outside a run's folder are deleted."""
        if self._own:
            self._own.cleanup()

    def _stored(self, client: int, since: int | None, state: Tensors) -> StateFile:
        self.folder.mkdir(parents=True, exist_ok=True)
        return write_state(state, self.folder / file_name(client, since))

    def _loaded(self, kept: StateFile) -> Tensors:
        return load_file(kept.path, device=str(self.device))

    def _restored(self, file: StateFile) -> StateFile:
        check_sha256(file.path, sha256_of(file.path), file.sha256)
        with safe_open(file.path, "pt"):
            return file

    def _saved(self, client: int, since: int, folder: Path) -> StateFile:
        return self._kept[client][since]  # it is in the checkpoint's folder

    def _drop(self, kept: StateFile) -> None:
        if self._own:  # in a run's folder, `Checkpoint` deletes files, once no checkpoint lists them
            kept.path.unlink(missing_ok=True)


def file_name(client: int, since: int | None) -> str:
    """The file name of a client's state after a round; rounds count from 1 in it, and 0 is the initial state."""
    return f"client-{client:05d}-round-{0 if since is None else since + 1:05d}.safetensors"


def check_store(where: str) -> None:
    """Raises `UserError` for an unknown store."""
    if not isinstance(where, str) or where not in ("auto", "device", "host", "disk"):
        raise UserError(f"store is {where!r}; choose auto, device, host or disk")


def choose(where: str, setting: Setting, clients: int) -> tuple[Place, str]:
    """The store for the states of `clients` clients (auto: the first in which they fit), and a line that reports it."""
    device, host = setting.device, torch.device("cpu")
    needed = largest_state(setting) * clients
    if where == "auto":
        fits = {"device": needed <= STATES_SHARE * free_bytes(device), "host": needed <= STATES_SHARE * free_bytes(host)}
        where = next((place for place, enough in fits.items() if enough), "disk")
    if where == "host" and device.type == "cpu":
        where = "device"
    in_memory = "in memory" if device.type == "cpu" else "on the GPU"
    there = {"device": in_memory, "host": "in the host's memory", "disk": "on disk"}[where]
    line = f"clients' states are kept {there}: at most {format_bytes(needed)} for {clients} clients"
    return cast(Place, where), line


def largest_state(setting: Setting) -> int:
    """Bytes of the largest state that a client can have."""
    return max(size(setting.fresh_net(client).state_dict()).bytes for client in setting.models.values())


AnyStore = Store[Tensors] | Store[StateFile]


def make_store(where: Place, device: torch.device, checkpoint: Path | None) -> AnyStore:
    """Creates a store; on disk it writes into the run's checkpoint, if there is one."""
    if where == "disk":
        return DiskStore(device, checkpoint)
    return HostStore(device) if where == "host" else DeviceStore(device)

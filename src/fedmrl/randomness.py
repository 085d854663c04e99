"""Random generators keyed by seed and purpose, instead of global state.

So a resumed run is bit-identical, every engine sees the same batches, and a client's results do not depend on others.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_LOCK = RLock()  # all threads share torch's global generator


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A NumPy generator for one purpose, for instance one client's batches in one round.

    >>> generator(0, "batches", 3, 7).integers(100) == generator(0, "batches", 3, 7).integers(100)
    np.True_
    >>> generator(0, "batches", 3, 7).random() == generator(0, "batches", 7, 3).random()
    False
    """
    # The key's length is included: NumPy pads with zeros, so (seed,) and (seed, 0) would draw the same.
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), len(key), *key])


@contextmanager
def torch_seeded(seed: int, purpose: str, *key: int) -> Iterator[None]:
    """A context in which torch's global generators are seeded by the key; restores their state at the end.

    All threads share these generators, so no other thread may draw from them meanwhile.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with _LOCK, torch.random.fork_rng(devices=devices):
        torch.manual_seed(_drawn(seed, purpose, *key))
        yield


def host_seeded(seed: int, purpose: str, *key: int) -> "_OwnGenerator":
    """A context in which this thread's draws on the host follow from the key, whatever other threads do: a compiler in
    another thread changes the state of torch's global generator.

    >>> with host_seeded(0, "weights", 3):
    ...     first = torch.rand(2)
    >>> with host_seeded(0, "weights", 3):
    ...     again = torch.nn.init.uniform_(torch.empty(2))
    >>> torch.equal(first, again)
    True
    """
    return _OwnGenerator(torch.Generator().manual_seed(_drawn(seed, purpose, *key)))


class _OwnGenerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that passes its generator to random operators, in this thread only."""

    def __init__(self, own: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = own

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or given.get("generator") is not None:
            return func(*args, **given)
        place = given.get("device") or next((a.device for a in args if isinstance(a, Tensor)), "cpu")
        if torch.device(place).type != "cpu":
            return func(*args, **given)
        if (overload := _with_generator(func)) is not None:
            return overload(*args, **{**given, "generator": self._own})
        with _LOCK:  # the operator takes no generator: set the global one's state for it
            before = torch.get_rng_state()
            torch.set_rng_state(self._own.get_state())
            try:
                return func(*args, **given)
            finally:
                self._own.set_state(torch.get_rng_state())
                torch.set_rng_state(before)


def _with_generator(func: Any) -> Any:
    """The operator, or its overload that takes a generator, if any."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    overload = "generator" if func._overloadname == "default" else f"{func._overloadname}_generator"
    return getattr(func.overloadpacket, overload) if overload in func.overloadpacket.overloads() else None


def _drawn(seed: int, purpose: str, *key: int) -> int:
    return int(generator(seed, purpose, *key).integers(2**63))

"""Everything random is drawn from a generator keyed by what it is for, never from global state.

So a run resumes bit for bit, every engine sees the same batches, and a client computes the same thing alone.
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

_ALONE = RLock()  # torch's own generator is one for all threads


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A NumPy generator for one purpose, for instance one client's batches in one round.

    >>> generator(0, "batches", 3, 7).integers(100) == generator(0, "batches", 3, 7).integers(100)
    np.True_
    >>> generator(0, "batches", 3, 7).random() == generator(0, "batches", 7, 3).random()
    False
    """
    # The key's length is part of it: NumPy pads with zeros, so that (seed,) and (seed, 0) would draw alike.
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), len(key), *key])


@contextmanager
def torch_seeded(seed: int, purpose: str, *key: int) -> Iterator[None]:
    """Inside, torch's own draws (dropout, a model's) come from the key; outside, its state is untouched.

    They are drawn from the generators that torch has for all threads, so that what draws otherwise must not run meanwhile.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with _ALONE, torch.random.fork_rng(devices=devices):
        torch.manual_seed(_drawn(seed, purpose, *key))
        yield


def host_seeded(seed: int, purpose: str, *key: int) -> "_OwnGenerator":
    """Inside, what this thread draws on the host comes from the key, whatever others draw meanwhile: a compiler in another
    thread sets torch's own generator back and forth.

    >>> with host_seeded(0, "weights", 3):
    ...     first = torch.rand(2)
    >>> with host_seeded(0, "weights", 3):
    ...     again = torch.nn.init.uniform_(torch.empty(2))
    >>> torch.equal(first, again)
    True
    """
    return _OwnGenerator(torch.Generator().manual_seed(_drawn(seed, purpose, *key)))


class _OwnGenerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, and in this thread alone, operators that draw are given this generator."""

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
        if (taking := _taking_generator(func)) is not None:
            return taking(*args, **{**given, "generator": self._own})
        with _ALONE:  # an operator that cannot be told: torch's own generator is lent to it
            before = torch.get_rng_state()
            torch.set_rng_state(self._own.get_state())
            try:
                return func(*args, **given)
            finally:
                self._own.set_state(torch.get_rng_state())
                torch.set_rng_state(before)


def _taking_generator(func: Any) -> Any:
    """The operator itself if it takes a generator, else its twin that does, if there is one."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    twin = "generator" if func._overloadname == "default" else f"{func._overloadname}_generator"
    return getattr(func.overloadpacket, twin) if twin in func.overloadpacket.overloads() else None


def _drawn(seed: int, purpose: str, *key: int) -> int:
    return int(generator(seed, purpose, *key).integers(2**63))

"""Everything random is drawn from a generator keyed by what it is for, never from global state.

So a run resumes bit for bit, every engine sees the same batches, and a client computes the same thing alone.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

_ALONE = RLock()  # torch's generator is one for all threads


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
    """Inside, torch's own draws (dropout, a model's) come from the key; outside, its state is untouched."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with _ALONE, torch.random.fork_rng(devices=devices):
        torch.manual_seed(_drawn(seed, purpose, *key))
        yield


@contextmanager
def host_seeded(seed: int, purpose: str, *key: int) -> Iterator[None]:
    """The same for what is drawn on the host alone. A GPU is not touched, so that another thread may do it at any time."""
    with _ALONE:
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(_drawn(seed, purpose, *key))
        try:
            yield
        finally:
            torch.set_rng_state(before)


def _drawn(seed: int, purpose: str, *key: int) -> int:
    return int(generator(seed, purpose, *key).integers(2**63))

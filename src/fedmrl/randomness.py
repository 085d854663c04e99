"""Everything random is drawn from a generator keyed by what it is for, never from global state.

So a run resumes bit for bit, every engine sees the same batches, and a client computes the same thing alone.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


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
    """Inside, torch's own draws (initial weights, dropout) come from the key; outside, its state is untouched."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(generator(seed, purpose, *key).integers(2**63)))
        yield

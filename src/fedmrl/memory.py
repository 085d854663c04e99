"""How much memory is free."""

import math
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> float:
    """What a device can still take; for a CPU, what the system could give without swapping."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds in reserve is free, too.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_available(), _left_in_container())


def _available() -> int:
    if _MEMINFO.is_file():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 4 * 1024**3  # where the system does not say: little enough for any machine that has torch


def _left_in_container() -> float:
    """What a container's limit leaves, if there is one: past it, processes are ended."""
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return math.inf
    cached = sum(int(counts.get(name, 0)) for name in ("active_file", "inactive_file"))  # given back when memory is asked for
    return math.inf if limit == "max" else max(0, int(limit) - int(used) + cached)


def said(count: float) -> str:
    """A number of bytes for people.

    >>> said(3 * 1024**3), said(1500 * 1024)
    ('3.0 GiB', '1.5 MiB')
    """
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"

"""Free memory of devices."""

import math
from pathlib import Path

import torch

from fedmrl.errors import UserError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> float:
    """The free memory of a device; for a CPU, what is available without swapping."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Memory that torch has reserved but not allocated is free, too.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_available(), _left_in_container())


def check_room(what: str, needed: float) -> None:
    """Raises `UserError` if reading `what` needs more than the free memory, as the system would kill the process."""
    if needed > (free := free_bytes(torch.device("cpu"))):
        raise UserError(f"{what} needs {format_bytes(needed)} of memory, and {format_bytes(free)} are free; give fewer samples")


def _available() -> int:
    if _MEMINFO.is_file():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 4 * 1024**3  # a safe guess where the system does not report it


def _left_in_container() -> float:
    """What is left of a container's memory limit, beyond which processes are killed."""
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return math.inf
    cached = sum(int(counts.get(name, 0)) for name in ("active_file", "inactive_file"))  # reclaimed when needed
    return math.inf if limit == "max" else max(0, int(limit) - int(used) + cached)


def format_bytes(count: float) -> str:
    """A number of bytes as readable text.

    >>> format_bytes(3 * 1024**3), format_bytes(1500 * 1024)
    ('3.0 GiB', '1.5 MiB')
    """
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"

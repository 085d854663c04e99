"""The CPU's name, and whether it has bf16 instructions."""

import platform
from functools import cache
from pathlib import Path

_NATIVE_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Linux's names of the bf16 features of x86 and ARM processors."""


def cpu_name() -> str:
    """The CPU's model name, with family and model number where known, as virtual machines may hide the name.

    >>> bool(cpu_name())
    True
    """
    facts = _facts()
    numbers = [f"{word} {facts[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    name = facts.get("model name", f"{platform.machine()} CPU")
    return f"{name} ({', '.join(numbers)})" if numbers else name


def emulates_bf16() -> bool:
    """Whether bf16 is emulated in 32 bits on this CPU, which is slower; False if unknown."""
    facts = _facts()
    features = facts.get("flags", facts.get("Features"))
    return features is not None and not _NATIVE_BF16 & set(features.split())


@cache
def _facts() -> dict[str, str]:
    """The first core's entries in `/proc/cpuinfo`."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0]
    except OSError:
        return {}
    entries = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in entries}

"""The CPU, as far as results and speed depend on it: its name, and whether it multiplies in bf16."""

import platform
from functools import cache
from pathlib import Path

_NATIVE_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Features by which x86 and ARM processors multiply in bf16, as Linux names them."""


def cpu_name() -> str:
    """The CPU's model as the system names it, with family and model number where known: virtual machines hide the rest.

    >>> bool(cpu_name())
    True
    """
    facts = _facts()
    numbers = [f"{word} {facts[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    name = facts.get("model name", f"{platform.machine()} CPU")
    return f"{name} ({', '.join(numbers)})" if numbers else name


def emulates_bf16() -> bool:
    """Whether bf16 is computed by 32-bit instructions here, which is slower; False where the system does not say."""
    facts = _facts()
    features = facts.get("flags", facts.get("Features"))
    return features is not None and not _NATIVE_BF16 & set(features.split())


@cache
def _facts() -> dict[str, str]:
    """What Linux says of the first core."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0]
    except OSError:
        return {}
    said = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in said}

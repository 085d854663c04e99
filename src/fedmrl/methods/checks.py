"""What the functions of a user's method must return."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
from torch import Tensor, nn

from fedmrl.guard import Check, described, line, nothing, tensors
from fedmrl.training import Phase, SumsOf


def _modes(result: Any) -> str | None:
    wrong = not isinstance(result, tuple | list) or not result or not all(isinstance(mode, str) and mode for mode in result)
    if wrong or len(set(result)) < len(result):
        found = ", ".join(map(repr, result)) if isinstance(result, tuple | list) else described(result)
        return f"is {found:.80}; it must be a tuple of different names, the default first"
    return None


def loss(result: Any, *_: Any, **__: Any) -> str | None:
    """The check of a loss: a scalar, or a scalar with sums by name."""
    value, sums = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(value, Tensor):
        return f"returns {described(result)}; it must return a scalar tensor, or one with a dict of sums"
    if value.ndim or not value.is_floating_point():
        kind = described(value) if value.ndim else f"a scalar of type {str(value.dtype).removeprefix('torch.')}"
        return f"returns {kind}; it must return a scalar of real numbers, as batch.mean gives"
    if not isinstance(sums, dict) or not all(isinstance(n, str) and isinstance(t, Tensor) for n, t in sums.items()):
        return "returns sums that are no dict of tensors by name"
    return None


def _encoded(result: Any, uploads: Sequence[Any], *_: Any, **__: Any) -> str | None:
    if not isinstance(result, list | tuple) or len(result) != len(uploads):
        found = f"{len(result)} uploads" if isinstance(result, list | tuple) else described(result)
        return f"returns {found} for {len(uploads)}; it must return a list with one for each"
    return next((problem for content in result if (problem := tensors(content))), None)


def _scores(result: Any, *_: Any, **__: Any) -> str | None:
    if not isinstance(result, Tensor) or result.ndim != 2:
        return f"returns {described(result)}; it must return a tensor of samples × classes"
    return None


def _subsets(result: Any, samples: int, *_: Any, **__: Any) -> str | None:
    if not isinstance(result, Mapping) or not all(isinstance(name, str) for name in result):
        return f"returns {described(result)}; it must return a dict of positions by name"
    for name, positions in result.items():
        if not isinstance(positions, np.ndarray) or positions.ndim != 1 or positions.dtype.kind not in "iu":
            return f"returns {described(positions)} as {name!r}; it must be a NumPy array of whole numbers with one axis"
        if len(positions) and not 0 <= positions.min() <= positions.max() < samples:
            return f"returns positions outside 0 to {samples - 1} as {name!r}, of a client with {samples} samples"
    return None


def _modules(result: Any, *_: Any, **__: Any) -> str | None:
    if not isinstance(result, Mapping):
        return f"returns {described(result)}; it must return a dict of modules by name"
    for name, module in result.items():
        if not isinstance(name, str) or not isinstance(module, nn.Module):
            return f"returns {described(module)} under {name!r}; it must return a dict of modules by name"
    return None


def _phases(result: Any, *_: Any, **__: Any) -> str | None:
    if not isinstance(result, tuple | list) or not result or not all(isinstance(phase, Phase) for phase in result):
        return f"returns {described(result)}; it must return a tuple of at least one fedmrl.training.Phase"
    return next((f"returns a phase whose {problem}" for phase in result if (problem := _phase_problem(phase))), None)


def _phase_problem(phase: Phase) -> str | None:
    """What is wrong with a phase's fields."""
    for name, table in (("lr", phase.lr), ("bounds", phase.bounds)):
        if not isinstance(table, Mapping) or not (table or name == "bounds"):
            return f"{name} is {described(table)}; it must be a dict, of parts or parameters"
    numbers = {f"lr of {part!r}": rate for part, rate in phase.lr.items()}
    numbers |= {"momentum": phase.momentum, "weight_decay": phase.weight_decay, "clip": phase.clip or 0.0}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            return f"{name} is {value!r:.80}; it must be a number from 0"
    if type(phase.epochs) is not int or phase.epochs < 1:
        return f"epochs is {phase.epochs!r:.80}; it must be a whole number from 1"
    if not callable(phase.loss):
        return f"loss is {described(phase.loss)}; it must be a function of a net and a batch"
    known = get_args(SumsOf)
    return None if phase.sums_of in known else f"sums_of is {phase.sums_of!r:.80}; choose {' or '.join(map(repr, known))}"


CHECKS: dict[str, Check] = {
    "title": line,
    "summary": line,
    "modes": _modes,
    "check": nothing,
    "subsets": _subsets,
    "receive": nothing,
    "phases": _phases,
    "loss": loss,
    "upload": tensors,
    "encode": _encoded,
    "predict": _scores,
    "start": tensors,
    "answer": tensors,
    "aggregate": tensors,
    "new_shared": _modules,
}
"""The check of each function's result; `build` has its own."""

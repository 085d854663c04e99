"""Engines: how a round's clients are trained and evaluated. None of them knows a method by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from fedmrl.engines.base import CorrectCounts, Engine, Member, Setting, Terms, Trained, Turn
from fedmrl.engines.batched import BatchedEngine
from fedmrl.engines.reference import ReferenceEngine
from fedmrl.engines.runner import Way
from fedmrl.errors import UserError, cause

ENGINES: dict[str, type[Engine]] = {"reference": ReferenceEngine, "batched": BatchedEngine}
EngineChoice = str | Callable[..., Engine]
"""An engine's name, or what makes one for the settings of some runs: `Reference()`, `Batched()`, a subclass of `Engine`."""


@dataclass(frozen=True)
class Reference:
    """The reference engine: one client after another, the oracle for all others."""

    def __call__(self, *settings: Setting) -> Engine:
        """The engine for these runs."""
        return ReferenceEngine(*settings)


@dataclass(frozen=True)
class Batched:
    """The batched engine: a round's clients as one program."""

    way: Way | None = None
    """How its steps are run: eager, captured or compiled; None: what is worth it on this device."""

    def __post_init__(self) -> None:
        if self.way not in (None, *get_args(Way)):
            raise UserError(f"way is {self.way!r}; choose {', '.join(get_args(Way))}, or None")

    def __call__(self, *settings: Setting) -> Engine:
        """The engine for these runs."""
        return BatchedEngine(*settings, way=self.way)


def engine_for(choice: EngineChoice, *settings: Setting) -> Engine:
    """The engine that was chosen; `auto` is the faster one: on a GPU clients as one program, on a CPU one after another."""
    check_engine(choice)
    if choice == "auto":
        choice = "batched" if settings[0].device.type == "cuda" else "reference"
    try:
        engine = (ENGINES[choice] if isinstance(choice, str) else choice)(*settings)
    except TypeError as error:
        if isinstance(choice, str):
            raise
        raise UserError(f"engine is {choice!r}, which makes no engine ({cause(error)}); give one, as Batched()") from error
    if not isinstance(engine, Engine):
        raise UserError(f"engine is {choice!r}, which makes a {type(engine).__name__}; it must make a fedmrl.engines.Engine")
    return engine


def check_engine(choice: EngineChoice) -> None:
    """Raises `UserError` for an unknown engine."""
    if isinstance(choice, type) and not issubclass(choice, Engine):
        raise UserError(f"engine is the class {choice.__name__}; give what it makes, as {choice.__name__}()")
    if not callable(choice) and choice not in ("auto", *ENGINES):
        known = ", ".join(("auto", *ENGINES))
        raise UserError(f"engine: there is no {choice!r}; choose {known}, or give what makes one, as fedmrl.engines.Batched()")


__all__ = [
    "ENGINES",
    "Batched",
    "BatchedEngine",
    "CorrectCounts",
    "Engine",
    "EngineChoice",
    "Member",
    "Reference",
    "ReferenceEngine",
    "Setting",
    "Terms",
    "Trained",
    "Turn",
    "check_engine",
    "engine_for",
]

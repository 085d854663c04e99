"""Engines train and evaluate a round's clients, for any method."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from fedmrl.engines.base import CorrectCounts, Engine, Member, Setting, Terms, Trained, Turn
from fedmrl.engines.batched import BatchedEngine
from fedmrl.engines.reference import ReferenceEngine
from fedmrl.engines.runner import Way
from fedmrl.errors import UserError, cause

ENGINES: dict[str, type[Engine]] = {"reference": ReferenceEngine, "batched": BatchedEngine}
RAY = "ray"
"""The choice of a Ray cluster, whose processes each have a reference engine; no engine of this process."""
EngineChoice = str | Callable[..., Engine]
"""An engine's name, or a factory called with the runs' settings: `Reference()`, `Batched()`, a subclass of `Engine`."""


@dataclass(frozen=True)
class Reference:
    """The reference engine: one client after another; the other engines are tested against it."""

    def __call__(self, *settings: Setting) -> Engine:
        """The engine for these runs."""
        return ReferenceEngine(*settings)


@dataclass(frozen=True)
class Batched:
    """The batched engine: all clients of a round in one program."""

    way: Way | None = None
    """How steps run: eager, captured or compiled; None: chosen by device and length of the run."""

    def __post_init__(self) -> None:
        if self.way is not None and not (isinstance(self.way, str) and self.way in get_args(Way)):
            raise UserError(f"way is {self.way!r:.80}; choose {', '.join(get_args(Way))}, or None")

    def __call__(self, *settings: Setting) -> Engine:
        """The engine for these runs."""
        return BatchedEngine(*settings, way=self.way)


def engine_for(choice: EngineChoice, *settings: Setting) -> Engine:
    """Creates the chosen engine; `auto` is the faster one: batched on a GPU, reference on a CPU."""
    check_engine(choice)
    if choice == RAY:
        raise UserError(f"engine is {RAY!r}, which only fedmrl.run, run_seeds and compare take; choose {', '.join(ENGINES)}")
    if choice == "auto":
        choice = "batched" if settings[0].device.type == "cuda" else "reference"
    try:
        engine = (ENGINES[choice] if isinstance(choice, str) else choice)(*settings)
    except TypeError as error:
        if isinstance(choice, str):
            raise
        raise UserError(f"engine is {choice!r}, which makes no engine ({cause(error)}); give one, as Batched()") from error
    if not isinstance(engine, Engine):
        raise UserError(
            f"engine is {choice!r}, which returns a {type(engine).__name__}; it must return a fedmrl.engines.Engine"
        )
    return engine


def check_engine(choice: EngineChoice) -> None:
    """Raises `UserError` for an unknown engine."""
    if isinstance(choice, type) and not issubclass(choice, Engine):
        raise UserError(f"engine is the class {choice.__name__}; give what it makes, as {choice.__name__}()")
    if not callable(choice) and not (isinstance(choice, str) and choice in ("auto", *ENGINES, RAY)):
        known = ", ".join(("auto", *ENGINES, RAY))
        raise UserError(f"engine is {choice!r:.80}; choose {known}, or give a factory such as fedmrl.engines.Batched()")


__all__ = [
    "ENGINES",
    "RAY",
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

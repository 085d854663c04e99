"""Engines: how a round's clients are trained and evaluated. None of them knows a method by name."""

from fedmrl.engines.base import Engine, Outcome, Right, Setting, Turn
from fedmrl.engines.batched import BatchedEngine
from fedmrl.engines.reference import ReferenceEngine
from fedmrl.errors import UserError

ENGINES: dict[str, type[Engine]] = {"reference": ReferenceEngine, "batched": BatchedEngine}


def engine_for(name: str, *settings: Setting) -> Engine:
    """The engine of that name; `auto` is the faster one: on a GPU clients as one program, on a CPU one after another."""
    check_engine(name)
    if name == "auto":
        name = "batched" if settings[0].device.type == "cuda" else "reference"
    return ENGINES[name](*settings)


def check_engine(name: str) -> None:
    """Refuse an engine that there is not."""
    if name not in ("auto", *ENGINES):
        raise UserError(f"--engine: there is no {name!r}; choose auto, {', '.join(ENGINES)}")


__all__ = [
    "ENGINES",
    "BatchedEngine",
    "Engine",
    "Outcome",
    "ReferenceEngine",
    "Right",
    "Setting",
    "Turn",
    "check_engine",
    "engine_for",
]

"""Engines: how a round's clients are trained and evaluated. None of them knows a method by name."""

from fedmrl.engines.base import Engine, Outcome, Setting, Turn
from fedmrl.engines.reference import ReferenceEngine

ENGINES: dict[str, type[Engine]] = {"reference": ReferenceEngine}


def engine_for(name: str, setting: Setting) -> Engine:
    """The engine of that name; `auto` takes the fastest that can run here, which is the only one for now."""
    return ENGINES["reference" if name == "auto" else name](setting)


__all__ = ["ENGINES", "Engine", "Outcome", "ReferenceEngine", "Setting", "Turn", "engine_for"]

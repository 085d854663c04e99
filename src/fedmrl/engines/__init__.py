"""Engines: how a round's clients are trained and evaluated. None of them knows a method by name."""

from fedmrl.engines.base import Engine, Outcome, Setting, Turn
from fedmrl.engines.reference import ReferenceEngine
from fedmrl.errors import UserError

ENGINES: dict[str, type[Engine]] = {"reference": ReferenceEngine}


def engine_for(name: str, setting: Setting) -> Engine:
    """The engine of that name; `auto` takes the fastest that can run here, which is the only one for now."""
    check_engine(name)
    return ENGINES["reference" if name == "auto" else name](setting)


def check_engine(name: str) -> None:
    """Refuse an engine that there is not."""
    if name not in ("auto", *ENGINES):
        raise UserError(f"--engine: there is no {name!r}; choose auto, {', '.join(ENGINES)}")


__all__ = ["ENGINES", "Engine", "Outcome", "ReferenceEngine", "Setting", "Turn", "check_engine", "engine_for"]

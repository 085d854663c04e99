"""Registration of users' methods, datasets, models and aggregation rules, and the recipe tables that name them."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from fedmrl.aggregation import MEAN, RULES, Aggregation
from fedmrl.data import SOURCES, DataSource, Digits
from fedmrl.errors import UserError
from fedmrl.methods import METHODS, FedMRL, Method
from fedmrl.models import MODELS, Model, is_own
from fedmrl.registry import Registry, origin_of
from fedmrl.table import Table

UNREGISTERED = "Python, unregistered"
"""How the origin of something begins that no recipe's file can name."""

C = TypeVar("C", bound=type[Method | DataSource | Model | Aggregation])

_KINDS: dict[type, Registry[Any]] = {Method: METHODS, DataSource: SOURCES, Model: MODELS, Aggregation: RULES}


def register(thing: C) -> C:
    """Registers a method, dataset, model or aggregation rule, so that recipes and the command line can name it.

    >>> from fedmrl import Standalone, load_recipe
    >>> @register
    ... class Alone(Standalone):
    ...     name = "alone"
    >>> load_recipe("quickstart", {"method.name": "alone"}).method
    Alone()
    """
    for base, registry in _KINDS.items():
        if isinstance(thing, type) and issubclass(thing, base):
            if inspect.isabstract(thing):
                missing = ", ".join(sorted(getattr(thing, "__abstractmethods__", ())))
                raise UserError(f"{thing.__name__} cannot be registered: it does not define {missing}")
            registry.add(thing.name, thing, module=thing.__module__)
            return thing
    bases = ", ".join(f"fedmrl.{base.__name__}" for base in _KINDS)
    raise UserError(f"{thing!r} cannot be registered; it must be a class derived from one of {bases}")


class NamedTable(NamedTuple):
    """A table of a recipe that names a registered class; its other keys are the class's fields."""

    registry: Registry[Any]
    key: str
    """The key that holds the name."""
    default: str


NAMED: Mapping[str, NamedTable] = {
    "data": NamedTable(SOURCES, "name", Digits.name),
    "method": NamedTable(METHODS, "name", FedMRL.name),
    "aggregation": NamedTable(RULES, "rule", MEAN.name),
}


def named_by(thing: Any) -> str:
    """The name of the object in a `NAMED` table."""
    return str(thing.name)


def is_registered(table: str, thing: Table) -> bool:
    """Whether a recipe's file can name the object, because exactly its class is registered under its name."""
    return NAMED[table].registry.get(named_by(thing)) is type(thing)


def origins(chosen: Mapping[str, Table], models: Iterable[Model]) -> dict[str, str]:
    """The origin of each custom class that a recipe names, by key: a file, a module, or Python."""
    found: dict[str, str] = {}
    for table, thing in chosen.items():
        registry, key, _ = NAMED[table]
        name = named_by(thing)
        found[f"{table}.{key}"] = registry.origin(name) if is_registered(table, thing) else _from_python(type(thing))
    for model in models:
        if is_own(model):
            registered = MODELS.get(model.name) is type(model)
            found[f"models {model.name}"] = MODELS.origin(model.name) if registered else _from_python(type(model))
    return {key: origin for key, origin in found.items() if origin}


def _from_python(kind: type) -> str:
    return f"{UNREGISTERED} ({origin_of(kind.__module__) or kind.__module__})"

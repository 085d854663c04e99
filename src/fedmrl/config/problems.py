"""Validation errors as sentences: what is wrong in a recipe, where, and what to do."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedmrl.config.recipe import Recipe, choices
from fedmrl.models import CNN
from fedmrl.plugins import NAMED, named_by
from fedmrl.table import Table

RENAMED = {"aggregation.liars": "aggregation.byzantine"}
"""Keys of older versions, each with its name today."""


def known_keys(kinds: Mapping[str, type[Table]]) -> dict[str, Any]:
    """Every key that a recipe may have, by its path, with its field; `kinds` has the classes of its `NAMED` tables."""

    def walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, field in model.model_fields.items():
            if not prefix and name in NAMED:
                yield f"{name}.{NAMED[name].key}", None
                yield from walk(kinds[name], f"{name}.") if name in kinds else ()
                continue
            # A table, or one that may be left out.
            tables = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
            if found := [kind for kind in tables if issubclass(kind, BaseModel)]:
                yield from walk(found[0], f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", field

    return dict(walk(Recipe, ""))


_REQUIREMENTS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "it must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "it must be a number"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "it must be a table"),
    **dict.fromkeys(("list_type", "tuple_type"), "it must be a list"),
    "missing": "it needs a value",
    "too_short": "its length must be at least {min_length}",
    "greater_than": "it must be above {gt:g}",
    "greater_than_equal": "it must be at least {ge:g}",
    "less_than": "it must be below {lt:g}",
    "less_than_equal": "it must be at most {le:g}",
}


def recipe_sentence(
    error: ValidationError, plain: Mapping[str, Any], source: str, kinds: Mapping[str, type[Table]], prefix: str = ""
) -> str:
    """A recipe's validation error as one sentence."""
    return sentence(error, plain, source, lambda key: _nearest(key, kinds), prefix)


def sentence(
    error: ValidationError, plain: Mapping[str, Any], source: str, hint: Callable[[str], str], prefix: str = ""
) -> str:
    """A validation error as one sentence: what, where, and what to do; `hint` ends the one on an unknown key."""
    # Of a union's branches, the user meant the one that got furthest into the input; of those equally far, prefer one with a
    # specific error to a list of names.
    problem = max(error.errors(), key=lambda found: (len(_where(found["loc"], plain)[0]), _is_specific(found)))
    path, value = _where(problem["loc"], plain)
    context = problem.get("ctx", {})
    key = f"{prefix}{path}"
    match problem["type"]:
        case "missing" if isinstance(problem["loc"][-1], str):
            return f"{source}: {f'{key}.' if path else prefix}{problem['loc'][-1]} is missing; give it a value"
        case "extra_forbidden":
            key += "".join(f".{step}" for step in _first_key(value))  # a misspelt table is best known by a key in it
            return f"{source}: there is no key {key}{hint(key)}"
        case "value_error":
            where = key.rstrip(".")
            shown = "" if isinstance(value, Mapping) else f" is {value!r}"
            return f"{source}: {where}{shown}{'; ' if shown else ': ' if where else ''}{context['error']}"
        case "literal_error":
            same = [e for e in error.errors() if e["type"] == "literal_error" and _where(e["loc"], plain)[0] == path]
            requirement = f"choose {', '.join(dict.fromkeys(e['ctx']['expected'].replace(' or ', ', ') for e in same))}"
        case kind if kind in _REQUIREMENTS:
            requirement = _REQUIREMENTS[kind].format(**context)
        case _:
            message = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
            requirement = f"it {message}" if message.startswith("should") else message
    return f"{source}: {key} is {value!r}; {requirement}"


def _first_key(value: Any) -> Iterator[str]:
    """The path of the first key in a table and its tables."""
    while isinstance(value, Mapping) and value:
        step, value = next(iter(value.items()))
        yield str(step)


def _is_specific(problem: ErrorDetails) -> bool:
    """Whether a union's branch recognised the value and says what is wrong with it."""
    not_a_list = problem["type"] == "list_type" and isinstance(problem["input"], Mapping)
    return problem["type"] in ("value_error", "too_short") or not_a_list


def _where(loc: Sequence[int | str], plain: Any) -> tuple[str, Any]:
    """The path of a problem in the user's input, and the value there; skips pydantic's names of union branches."""
    path, value = "", plain
    for step in loc:
        if isinstance(value, Mapping) and step in value:
            path, value = (f"{path}.{step}" if path else str(step)), value[step]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            path, value = f"{path}[{step}]", value[step]
    return path, value


def _nearest(key: str, kinds: Mapping[str, type[Table]]) -> str:
    if key in RENAMED:
        return f"; it is now called {RENAMED[key]}"
    known = known_keys(kinds)
    table, _, last = key.rpartition(".")
    if re.fullmatch(r"models\.(small|local\[\d+\])", table):
        return _nearest_width(table, last)
    owners = [name for name, kind in NAMED[table].registry.items() if last in kind.model_fields] if table in NAMED else []
    if owners:
        return f" with {table}.{NAMED[table].key} = {named_by(kinds[table])!r}; {choices(owners)} has it"
    same = [path for path in known if path.rpartition(".")[2] == last]
    same = difflib.get_close_matches(key, same, n=1, cutoff=0)
    # Compares the last parts of keys, since keys of one table share its name; within the table, more loosely.
    of_table = {path.rpartition(".")[2]: path for path in known if path.rpartition(".")[0] == table}
    words = {path.partition(".")[0]: path for path in reversed([*known])} | {path.rpartition(".")[2]: path for path in known}
    near = same or [of_table[word] for word in difflib.get_close_matches(last, of_table, cutoff=0.5)]
    near = near or [words[word] for word in difflib.get_close_matches(last, words, cutoff=0.7)]
    return f"; did you mean {near[0]}?" if near else "; 'fedmrl recipes --keys' lists all keys"


def _nearest_width(table: str, key: str) -> str:
    widths = list(CNN.model_fields)
    near = difflib.get_close_matches(key, ["hidden", *widths], n=1)
    if near and near != [key]:
        return f"; did you mean {table}.{near[0]}?"
    return f"; a model has hidden alone, or any of {', '.join(widths)}"

"""Changes to a recipe by `key=value`."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedmrl.config.paths import absolute, path_keys, resolve_model_paths
from fedmrl.config.problems import recipe_sentence
from fedmrl.errors import CODE_FAILS, UserError
from fedmrl.methods import Method
from fedmrl.plugins import NAMED, named_by
from fedmrl.table import Table

Settings = Mapping[str, Any] | Iterable[str]
"""Changes to a recipe by key path: `{"training.lr": 0.05}` or `["training.lr=0.05"]`."""


def pairs(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Each changed key with its value."""
    if isinstance(settings, Mapping):
        yield from ((str(key), value) for key, value in settings.items())
        return
    try:
        listed = list(settings) if isinstance(settings, Iterable) and not isinstance(settings, str) else [None]
    except CODE_FAILS:  # an array without axes is iterable by its type
        listed = [None]
    if not all(isinstance(setting, str) for setting in listed):
        raise UserError(f"settings is {settings!r:.80}; give keys with their values, as in {{'training.lr': 0.05}}")
    for setting in map(str, listed):
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise UserError(f"settings has {setting!r}; expected key=value, as in training.lr=0.05")
        try:
            yield key.strip(), parse_value(text.strip())
        except (RecursionError, ValueError) as error:
            raise UserError(f"settings: the value of {key.strip()} is too long or too deeply nested ({error})") from error


def parse_value(text: str) -> Any:
    """Parses a value as TOML; text that is not TOML is returned unchanged.

    >>> parse_value("0.5"), parse_value("[1, 2]"), parse_value("cifar10")
    (0.5, [1, 2], 'cifar10')
    """
    try:
        plain = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return plain["value"] if len(plain) == 1 else text


def _set(plain: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    within = plain
    for table in tables:
        if (found := within.get(table)) is None:
            within[table] = {}
        elif isinstance(found, Table):  # a recipe object, changed from Python
            within[table] = {**({NAMED[table].key: named_by(found)} if table in NAMED else {}), **found.model_dump()}
        within = within[table]
        if not isinstance(within, dict):
            raise UserError(f"settings: {key} cannot be set, as {table} is a value, not a table")
    if key in {f"{table}.{named.key}" for table, named in NAMED.items()} and within.get(last) != value:
        within.clear()  # the other fields belong to the class named before
    within[last] = value
    if key in path_keys(plain):
        within[last] = absolute(value, Path(), key)
    if tables == ["models"]:
        resolve_model_paths({"models": {last: value}}, Path())


def with_fields(method: Method, changes: Sequence[tuple[str, Any]]) -> tuple[Method, list[tuple[str, Any]]]:
    """Applies the changes of a method's fields to a method object, and returns it with the other changes."""
    fields = {key.removeprefix("method."): value for key, value in changes if key.startswith("method.")}
    rest = [(key, value) for key, value in changes if not key.startswith("method.")]
    if not fields:
        return method, rest
    if "name" in fields:
        raise UserError(f"method is given as an object, and settings name {fields['name']!r}; leave one of them out")
    try:
        return type(method).model_validate({**method.model_dump(), **fields}), rest
    except ValidationError as error:
        raise UserError(recipe_sentence(error, fields, "settings", {"method": type(method)}, prefix="method.")) from error


def changed_by(plain: dict[str, Any], changes: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The recipe's plain data with the changes made."""
    # Names come first: setting one drops the fields of what it named before.
    names = {f"{table}.{named.key}" for table, named in NAMED.items()}
    for key, value in sorted(changes, key=lambda pair: pair[0] not in names):
        _set(plain, key, value)
    return plain

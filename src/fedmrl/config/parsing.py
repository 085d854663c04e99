"""Recipes from plain data, validated."""

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from fedmrl.config.problems import recipe_sentence
from fedmrl.config.recipe import Recipe
from fedmrl.errors import UserError
from fedmrl.plugins import NAMED
from fedmrl.registry import loading_nothing
from fedmrl.table import Table


def parse_recipe(plain: Mapping[str, Any], source: str) -> Recipe:
    """Builds and validates a recipe from plain data; errors name `source`."""
    rest = dict(plain)
    chosen = {table: _parse_named(table, rest.pop(table, {}), source) for table in NAMED}
    kinds = {table: type(thing) for table, thing in chosen.items()}
    try:
        return Recipe.model_validate({**rest, **chosen})
    except ValidationError as error:
        raise UserError(recipe_sentence(error, rest, source, kinds)) from error


def _parse_named(table: str, given: Any, source: str) -> Any:
    """The object that a table names, with the table's fields."""
    if isinstance(given, Table):
        return given
    registry, key, default = NAMED[table]
    if not isinstance(given, dict):
        raise UserError(f"{source}: {table} is {given!r}; it must be a table with a {key}")
    fields = dict(given)
    kind: type[Table] = registry.find(fields.pop(key, default), f"{source}: {table}.{key}")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise UserError(recipe_sentence(error, fields, source, {table: kind}, prefix=f"{table}.")) from error


def settings_of(config: str) -> dict[str, Any]:
    """Every key of a recipe by its path, with defaults for keys that are newer than the file."""
    plain = tomllib.loads(config)
    with suppress(UserError), loading_nothing():  # a newer version wrote keys that are unknown here: keep them
        plain = tomllib.loads(parse_recipe(plain, "config.toml").to_toml())
    return _flat(plain)


def _flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one flat dictionary by path."""
    found: dict[str, Any] = {}
    for key, value in plain.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found

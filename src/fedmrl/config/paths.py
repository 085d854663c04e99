"""Paths in recipes, which are relative to the recipe's folder."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedmrl.files import user_path
from fedmrl.models import MODELS
from fedmrl.plugins import NAMED
from fedmrl.registry import is_file
from fedmrl.table import Table


def import_path(name: str, folder: Path) -> str:
    """An import, with the path of a file made absolute."""
    return str(absolute(name, folder, "imports")) if is_file(name) else name


def resolve_paths(plain: dict[str, Any], folder: Path, keys: Iterable[str]) -> None:
    """Makes the paths in a recipe absolute, relative to the recipe's folder."""
    resolve_model_paths(plain, folder)
    for key in keys:
        table, _, last = key.rpartition(".")
        within = plain.get(table) if table else plain
        if isinstance(within, dict) and last in within:
            within[last] = absolute(within[last], folder, key)


def resolve_model_paths(plain: Mapping[str, Any], folder: Path) -> None:
    """Makes the paths in a recipe's tables of models absolute."""
    models = plain.get("models")
    models = models if isinstance(models, Mapping) else {}
    local = models.get("local")
    for key, model in [*enumerate(local if isinstance(local, list) else []), ("small", models.get("small"))]:
        name = model.get("name") if isinstance(model, dict) else None
        known = MODELS.get(name) if isinstance(name, str) else None
        for field in known.path_fields() if known else []:
            if field in model:
                where = f"models.{key}" if key == "small" else f"models.local[{key}]"
                model[field] = absolute(model[field], folder, f"{where}.{field}")


def path_keys(plain: Mapping[str, Any]) -> list[str]:
    """The keys of a recipe whose values are files or folders."""
    found = ["partition.file", "participation"]
    for table, named in NAMED.items():
        within = plain.get(table, {})
        chosen = within if isinstance(within, Table) else None
        name = within.get(named.key, named.default) if isinstance(within, Mapping) else None
        kind = type(chosen) if chosen is not None else named.registry.get(name) if isinstance(name, str) else None
        found += [f"{table}.{field}" for field in kind.path_fields()] if kind else []
    return found


def absolute(value: Any, folder: Path, key: str) -> Any:
    """An absolute path, or a list of them; empty or other values are unchanged."""
    if isinstance(value, list):
        return [absolute(one, folder, key) for one in value]
    return str(folder.absolute() / user_path(value, key)) if isinstance(value, str) and value else value

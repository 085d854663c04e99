"""Recipes loaded from names, files, runs' folders and objects."""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmrl.config.parsing import parse_recipe
from fedmrl.config.paths import import_path, path_keys, resolve_paths
from fedmrl.config.recipe import Recipe
from fedmrl.config.settings import Settings, changed_by, pairs, with_fields
from fedmrl.errors import UserError, cause
from fedmrl.methods import Method
from fedmrl.plugins import NAMED
from fedmrl.recipes import FOLDER, known_recipes
from fedmrl.registry import import_all, loading_nothing
from fedmrl.schema import checked, parsed, read_text


@dataclass(frozen=True)
class NamedRecipe:
    """A recipe and its name."""

    name: str
    recipe: Recipe


def load_recipe(recipe: str | Path, settings: Settings = ()) -> Recipe:
    """Loads a recipe by name or file, with changed keys.

    >>> load_recipe("quickstart", {"rounds": 3, "method.d1": 20}).method.d1
    20
    """
    return load_named(recipe, settings).recipe


def load_named(
    recipe: str | Path | Recipe,
    settings: Settings = (),
    method: str | Method | None = None,
    imports: Sequence[str] = (),
    on_notice: Callable[[str], None] = lambda line: None,
) -> NamedRecipe:
    """Loads a recipe from its name, a TOML file, a run's folder or an object, and returns it with its name.

    `method` replaces the method (a name or an object), then `settings` change keys by their paths. The recipe's imports and
    `imports` are imported first, which `on_notice` reports.
    """
    if method is not None and not isinstance(method, str | Method):
        raise UserError(f"method is {method!r}; give a method's name, or an object such as fedmrl.FedMRL(d1=100)")
    changes = [*pairs(settings)]
    if isinstance(recipe, Recipe):
        plain, name, source, came_from = recipe.tables(), recipe.data.title, "settings", {}
    elif isinstance(recipe, str | Path):
        path, name = _find(recipe)
        plain, source, came_from = _whole(path, on_notice), str(recipe), read_origins(path.parent)
    else:
        raise UserError(f"recipe is {recipe!r}; give the name of a recipe, a TOML file, a run's folder or a fedmrl.Recipe")
    imports = [*imports, *_pop_imports(changes)]
    if imports:
        given = [import_path(name, Path()) for name in imports]
        import_all(given, on_notice)
        plain["imports"] = list(dict.fromkeys([*plain.get("imports", []), *given]))
    if isinstance(method, Method):
        plain["method"], changes = with_fields(method, changes)
    elif method is not None:
        changes = [("method.name", method), *((key, value) for key, value in changes if key != "method.name")]
    changed = {key for key, _ in changes} | ({"method.name"} if method is not None else set())
    return NamedRecipe(name, _from_there(changed_by(plain, changes), source, came_from, changed))


def recipe_of_run(config: str, folder: Path) -> Recipe:
    """The recipe of the run in a folder, from the text of its `config.toml`; imports nothing."""
    with loading_nothing():
        return _from_there(tomllib.loads(config), str(folder / "config.toml"), read_origins(folder), ())


def _from_there(plain: Mapping[str, Any], source: str, came_from: Mapping[str, str], changed: Iterable[str]) -> Recipe:
    """The recipe of plain data, whose custom classes must be of the same origins, unless their keys were changed."""
    try:
        found = parse_recipe(plain, source)
    except UserError as error:
        hints = [f"{key} came from {origin}" for key, origin in came_from.items() if key.split()[0] in str(error)]
        raise UserError(f"{error}; in that run {' and '.join(hints)}" if hints else str(error)) from error
    _check_origins(found, came_from, changed)
    return found


def read_origins(folder: Path) -> dict[str, str]:
    """The origins of the custom classes of the run in a folder, by key."""
    path = folder / "origins.json"
    return checked(path, dict[str, str], parsed(path, read_text(path))) if path.is_file() else {}


def _check_origins(recipe: Recipe, came_from: Mapping[str, str], changed: Iterable[str]) -> None:
    """Raises `UserError` if a key that named a custom class in the run now names one of fedmrl's, unless it was changed."""
    today = recipe.origins
    tables = {key.partition(".")[0] for key in changed if key.startswith("models.")}
    for key, origin in came_from.items():
        if key not in today and key not in changed and key.split()[0] not in tables:
            raise UserError(f"{key} of that run came from {origin}, and is something else here; run it from there")


def _find(recipe: str | Path) -> tuple[Path, str]:
    try:
        path = Path(recipe).expanduser()
        folder = path.is_dir()
    except (OSError, RuntimeError) as error:
        raise UserError(f"recipe is {str(recipe)[:80]!r}, which cannot be a file's name ({cause(error)})") from error
    if folder:
        if not (path / "config.toml").is_file():
            raise UserError(f"{path} is a folder without a run's config.toml; name a recipe, a TOML file or a run's folder")
        return path / "config.toml", path.name
    if path.suffix == ".toml" or path.is_file():
        return path, path.stem
    if str(recipe) in known_recipes():
        return FOLDER / f"{recipe}.toml", str(recipe)
    near = difflib.get_close_matches(str(recipe), known_recipes(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(f"there is no recipe {str(recipe)!r}; {hint}'fedmrl recipes' lists them, or name a TOML file")


def _whole(path: Path, on_notice: Callable[[str], None], extending: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Reads a recipe's file merged over the recipe that it extends, and imports what both list."""
    if path.resolve() in extending:
        raise UserError(f"{path} extends itself, through {extending[-1]}; remove one of the two extends")
    plain = _read(path)
    base, below = plain.pop("extends", None), {}
    if base is not None:
        if not isinstance(base, str) or not base:
            raise UserError(f"{path}: extends is {base!r}; it must be the name of a recipe, or a TOML file")
        beside = path.parent / base
        found, _ = _find(beside if beside.is_file() else base)
        below = _whole(found, on_notice, (*extending, path.resolve()))
    listed = _listed_imports(plain, str(path), path.parent)
    import_all(listed, on_notice)
    resolve_paths(plain, path.parent, path_keys(_on_top(below, plain)))
    imports = list(dict.fromkeys([*below.get("imports", []), *listed]))
    return {**_on_top(below, plain), **({"imports": imports} if imports else {})}


def _on_top(below: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Merges `plain` over `below` key by key; a table that names another class is replaced as a whole."""
    merged = dict(below)
    for key, value in plain.items():
        base = below.get(key)
        if isinstance(value, Mapping) and isinstance(base, Mapping):
            name = NAMED[key].key if key in NAMED else ""
            merged[key] = value if name in value and value[name] != base.get(name) else _on_top(base, value)
        else:
            merged[key] = value
    return merged


def _read(path: Path) -> dict[str, Any]:
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not TOML: it is not text") from error
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    return plain


def _listed_imports(plain: dict[str, Any], source: str, folder: Path) -> list[str]:
    """A recipe's imports; files are relative to its folder."""
    imports = plain.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(name, str) and name for name in imports):
        raise UserError(f"{source}: imports is {imports!r}; it must be a list of Python files or modules")
    return [import_path(name, folder) for name in imports]


def _pop_imports(changes: list[tuple[str, Any]]) -> list[str]:
    """Removes `imports` from the changes and returns them, as they must be imported before the rest is read."""
    taken = [_listed_imports({"imports": value}, "settings", Path()) for key, value in changes if key == "imports"]
    changes[:] = [change for change in changes if change[0] != "imports"]
    return [name for names in taken for name in names]

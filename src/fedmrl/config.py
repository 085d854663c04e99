"""Recipes: complete configurations in TOML, read, overridden by `key=value`, validated, and written with all defaults."""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from fedmrl.aggregation import MEAN, Aggregation
from fedmrl.data import DataSource, Digits
from fedmrl.data.partition import PartitionTable
from fedmrl.errors import UserError, cause
from fedmrl.files import user_path
from fedmrl.methods import Method, WeightSharing
from fedmrl.methods.fedmrl import FedMRL
from fedmrl.models import CNN, CNNS, MLP, MODELS, Model, is_own
from fedmrl.plugins import NAMED, named_by, origins
from fedmrl.privacy import Privacy
from fedmrl.recipes import FOLDER, known_recipes
from fedmrl.registry import import_all, is_file, loading_nothing
from fedmrl.schema import checked, first_problem, parsed, read_text
from fedmrl.table import Table
from fedmrl.training import Training


def _known_model(name: str) -> str:
    _model(name)
    return name


def _model(model: str | Model) -> Model:
    """A model, or the registered model of that name."""
    if isinstance(model, Model):
        return model
    found: Model = _named_model({"name": model})
    return found


def _named_model(given: Any) -> Any:
    """The model that a table names, with the table's other fields."""
    if not isinstance(given, Mapping):
        return given
    fields = dict(given)
    name = fields.pop("name")
    if not isinstance(name, str) or name not in MODELS:
        raise ValueError(f"there is no such model; {MODELS.hint(name)}")
    found = MODELS[name]
    kind, preset = (type(found), found.model_dump()) if isinstance(found, Model) else (found, {})
    if unknown := fields.keys() - kind.model_fields.keys():
        raise ValueError(f"{name} has no {min(unknown)}; it has {', '.join(kind.model_fields) or 'nothing to set'}")
    try:
        return kind.model_validate({**preset, **fields})
    except ValidationError as error:
        raise ValueError(f"{name}: {first_problem(error)}") from error


def _how_given(model: Any) -> str:
    if isinstance(model, str):
        return "name"
    if isinstance(model, Mapping):
        return "named" if "name" in model else "mlp" if "hidden" in model else "cnn"
    # A user's model may be derived from one of these.
    return "mlp" if type(model) is MLP else "named" if isinstance(model, Model) and type(model) is not CNN else "cnn"


# Discriminated by a key, so that an error names what is wrong in the chosen branch only.
Network = Annotated[
    Annotated[str, AfterValidator(_known_model), Tag("name")]
    | Annotated[CNN, Tag("cnn")]
    | Annotated[MLP, Tag("mlp")]
    | Annotated[
        Model,
        BeforeValidator(_named_model),
        PlainSerializer(lambda model: {"name": model.name, **model.model_dump(mode="json")}),
        Tag("named"),
    ],
    Discriminator(_how_given),
]


class ModelsTable(Table):
    """The recipe's `[models]` table."""

    local: Literal["heterogeneous", "homogeneous"] | Annotated[list[Network], Field(min_length=1)] = Field(
        "heterogeneous",
        description="heterogeneous: client k has CNN-(k mod 5 + 1); homogeneous: all CNN-1; or a list, assigned in turn, of "
        "names, CNNs as {conv1, conv2, fc1, fc2}, MLPs as {hidden}, a list of widths, and others as {name, …}",
    )
    small: Literal["auto"] | Network = Field(
        "auto",
        description="the model that all clients share; auto: the smallest of the local ones (on 3×32×32 images); with "
        "custom models CNN-5 (for images of at least 16×16) or an MLP of 64 units, its widths halved until it is no "
        "larger than the smallest of them",
    )

    own: list[str] | None = Field(None, description="the names of models that were given from Python, one for each client")

    @property
    def kinds(self) -> list[Model]:
        """The kinds of local model, in the order in which clients get them."""
        if self.local == "heterogeneous":
            return list(CNNS.values())
        if self.local == "homogeneous":
            return [CNNS["cnn-1"]]
        return [_model(model) for model in self.local]

    @property
    def named(self) -> list[Model]:
        """All models that the table names."""
        return [*self.kinds, *([] if self.small == "auto" else [_model(self.small)])]

    def of_clients(self, clients: int) -> list[Model]:
        """The local model of each client."""
        return list(islice(cycle(self.kinds), clients))

    @property
    def shared(self) -> Model | None:
        """The model that all clients share; None: it is chosen when the data's shape and the clients' models are known."""
        if self.small != "auto":
            return _model(self.small)
        if self.own is not None or any(is_own(model) for model in self.kinds):
            return None
        return min(self.kinds, key=lambda model: model.parameters((3, 32, 32), 10))


class EvaluationTable(Table):
    """The recipe's `[evaluation]` table."""

    every: Annotated[int, Field(ge=1)] = Field(10, description="rounds between evaluations of all clients")
    mode: str | None = Field(None, description="inference mode, if not the method's default (see 'fedmrl methods')")
    targets: list[Annotated[float, Field(gt=0, le=1)]] = Field(
        [0.5, 0.9], description="accuracies to which the cost in rounds, parameters and FLOPs is reported"
    )


class Recipe(Table):
    """The complete configuration of a run."""

    seed: Annotated[int, Field(ge=0)] = Field(0, description="the seed of all random numbers")
    rounds: Annotated[int, Field(ge=1, le=10_000_000)] = Field(100, description="number of rounds")
    clients: Annotated[int, Field(ge=1)] = Field(10, description="number of clients")
    participation: Annotated[float, Field(gt=0, le=1)] | Annotated[str, Field(min_length=1)] = Field(
        1.0, description="the share of clients in a round, or a JSON file that lists the clients of each round"
    )
    imports: list[str] = Field([], description="Python files or modules that register custom classes the recipe names")
    data: DataSource = Digits()
    partition: PartitionTable = PartitionTable()
    models: ModelsTable = ModelsTable()
    method: Method = FedMRL()
    aggregation: Aggregation = MEAN
    privacy: Privacy | None = Field(None, description="differential privacy of what clients share")
    training: Training = Training()
    evaluation: EvaluationTable = EvaluationTable()

    @model_validator(mode="after")
    def _method_has_mode(self) -> Self:
        mode, method = self.evaluation.mode, self.method
        if mode is not None and mode not in method.modes:
            raise ValueError(
                f"evaluation.mode is {mode!r}, which {method.name} with these settings lacks; choose {_choices(method.modes)}"
            )
        return self

    @model_validator(mode="after")
    def _method_aggregates(self) -> Self:
        if self.aggregation != MEAN and not self.method.averages:
            raise ValueError(
                f"aggregation.rule is {self.aggregation.name!r}, and {self.method.name} does not average clients' weights; "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _can_be_private(self) -> Self:
        private, method = self.privacy, self.method
        if private is None:
            return self
        if not method.averages:
            raise ValueError(f"privacy is for methods that average clients' weights, and {method.name} does not; leave it out")
        if not isinstance(method, WeightSharing) or not method.sends_weights:
            raise ValueError(
                f"privacy is for methods that send the shared weights as they are, and {method.name} sends something else, in "
                "which the noise would not be what was asked for; leave it out"
            )
        if method.weighting != "uniform":
            raise ValueError(
                "privacy bounds what any one client can change, for which all must weigh the same; set method.weighting to "
                "'uniform'"
            )
        if private.mode == "central" and self.aggregation != MEAN:
            raise ValueError(
                f"aggregation.rule is {self.aggregation.name!r}, and privacy.mode 'central' adds noise to the mean; leave the "
                "rule out, or choose 'local'"
            )
        if private.mode == "central" and isinstance(self.participation, str):
            raise ValueError(
                "participation is a file, and privacy.mode 'central' counts on clients that are drawn at random; give their "
                "share, or choose 'local'"
            )
        if private.delta * self.clients >= 1:
            raise ValueError(
                f"privacy.delta is {private.delta:g}, which would allow one of {self.clients} clients to be exposed; choose "
                f"less than {1 / self.clients:.2g}"
            )
        return self

    @property
    def headline_mode(self) -> str:
        """The mode of the headline accuracy."""
        return self.evaluation.mode or self.method.modes[0]

    @property
    def headline_view(self) -> Literal["own", "aggregated"]:
        """The view of the headline accuracy: with the server's last shared part, as in the paper, if predictions use it."""
        return "aggregated" if self.method.hears_server else "own"

    @property
    def views(self) -> tuple[str, ...]:
        """The views that are evaluated: `own`, and `aggregated` if predictions depend on the server."""
        return ("own", "aggregated") if self.method.hears_server else ("own",)

    @property
    def recorded_modes(self) -> list[str]:
        """The modes recorded in each round, the headline mode first."""
        modes = self.method.modes
        return list(dict.fromkeys([self.headline_mode, *(modes if self.method.records_every_mode else modes[:1])]))

    def evaluates_all(self, number: int) -> bool:
        """Whether all clients are evaluated after this round, counted from 1."""
        return number % self.evaluation.every == 0 or number == self.rounds

    def resolved(self) -> dict[str, Any]:
        """The recipe as plain data, with defaults and without unset keys."""
        plain = self.model_dump(exclude={*NAMED, *([] if self.imports else ["imports"])}, exclude_none=True, mode="json")
        for table, named in NAMED.items():
            chosen = getattr(self, table)
            plain[table] = {named.key: named_by(chosen), **chosen.model_dump(exclude_none=True, mode="json")}
        return plain

    def to_toml(self) -> str:
        """The resolved recipe as TOML, which `fedmrl run` accepts."""
        return tomli_w.dumps(self.resolved())

    def with_method(self, method: str | Method, changes: Mapping[str, Any] | None = None) -> "Recipe":
        """The recipe with another method, given by name or as an object, or with changed fields of the current one."""
        if isinstance(method, Method):
            return parse_recipe({**self.tables(), "method": method}, source=method.name)
        fields = self.method.model_dump() if method == self.method.name else {}
        return parse_recipe({**self.tables(), "method": {"name": method, **fields, **(changes or {})}}, source=method)

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each custom class that the recipe names, by key: a file, a module, or Python."""
        return origins({table: getattr(self, table) for table in NAMED}, self.models.named)

    def tables(self) -> dict[str, Any]:
        """The recipe's keys and tables, unchanged."""
        return {key: getattr(self, key) for key in type(self).model_fields}


@dataclass(frozen=True)
class NamedRecipe:
    """A recipe and its name."""

    name: str
    recipe: Recipe


Settings = Mapping[str, Any] | Iterable[str]
"""Changes to a recipe by key path: `{"training.lr": 0.05}` or `["training.lr=0.05"]`."""


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
    changes = [*_pairs(settings)]
    if isinstance(recipe, Recipe):
        plain, name, source, came_from = recipe.tables(), recipe.data.title, "settings", {}
    elif isinstance(recipe, str | Path):
        path, name = _find(recipe)
        plain, source, came_from = _whole(path, on_notice), str(recipe), read_origins(path.parent)
    else:
        raise UserError(f"recipe is {recipe!r}; give the name of a recipe, a TOML file, a run's folder or a fedmrl.Recipe")
    imports = [*imports, *_pop_imports(changes)]
    if imports:
        given = [_import_path(name, Path()) for name in imports]
        import_all(given, on_notice)
        plain["imports"] = list(dict.fromkeys([*plain.get("imports", []), *given]))
    if isinstance(method, Method):
        plain["method"], changes = _with_fields(method, changes)
    elif method is not None:
        changes = [("method.name", method), *((key, value) for key, value in changes if key != "method.name")]
    try:
        found = parse_recipe(_changed(plain, changes), source)
    except UserError as error:
        hints = [f"{key} came from {origin}" for key, origin in came_from.items() if key.split()[0] in str(error)]
        raise UserError(f"{error}; in that run {' and '.join(hints)}" if hints else str(error)) from error
    changed = {key for key, _ in changes} | ({"method.name"} if method is not None else set())
    _check_origins(found, came_from, changed)
    return NamedRecipe(name, found)


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


def _with_fields(method: Method, changes: Sequence[tuple[str, Any]]) -> tuple[Method, list[tuple[str, Any]]]:
    """Applies the changes of a method's fields to a method object, and returns it with the other changes."""
    fields = {key.removeprefix("method."): value for key, value in changes if key.startswith("method.")}
    rest = [(key, value) for key, value in changes if not key.startswith("method.")]
    if "name" in fields:
        raise UserError(f"method is given as an object, and settings name {fields['name']!r}; leave one of them out")
    try:
        return type(method).model_validate({**method.model_dump(), **fields}), rest
    except ValidationError as error:
        raise UserError(_sentence(error, fields, "settings", {"method": type(method)}, prefix="method.")) from error


def _changed(plain: dict[str, Any], changes: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    # Names come first: setting one drops the fields of what it named before.
    names = {f"{table}.{named.key}" for table, named in NAMED.items()}
    for key, value in sorted(changes, key=lambda pair: pair[0] not in names):
        _set(plain, key, value)
    return plain


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
    _resolve_paths(plain, path.parent, path_keys(_on_top(below, plain)))
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
    return [_import_path(name, folder) for name in imports]


def _pop_imports(changes: list[tuple[str, Any]]) -> list[str]:
    """Removes `imports` from the changes and returns them, as they must be imported before the rest is read."""
    taken = [_listed_imports({"imports": value}, "settings", Path()) for key, value in changes if key == "imports"]
    changes[:] = [change for change in changes if change[0] != "imports"]
    return [name for names in taken for name in names]


def _import_path(name: str, folder: Path) -> str:
    return str(_absolute(name, folder, "imports")) if is_file(name) else name


def _resolve_paths(plain: dict[str, Any], folder: Path, keys: Iterable[str]) -> None:
    """Makes the paths in a recipe absolute, relative to the recipe's folder."""
    for key in keys:
        table, _, last = key.rpartition(".")
        within = plain.get(table) if table else plain
        if isinstance(within, dict) and last in within:
            within[last] = _absolute(within[last], folder, key)


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


def _absolute(value: Any, folder: Path, key: str) -> Any:
    """An absolute path; empty or non-text values are unchanged."""
    return str(folder.absolute() / user_path(value, key)) if isinstance(value, str) and value else value


def _pairs(settings: Settings) -> Iterator[tuple[str, Any]]:
    if isinstance(settings, Mapping):
        yield from ((str(key), value) for key, value in settings.items())
        return
    listed = list(settings) if isinstance(settings, Iterable) and not isinstance(settings, str) else [None]
    if not all(isinstance(setting, str) for setting in listed):
        raise UserError(f"settings is {settings!r}; give keys with their values, as in {{'training.lr': 0.05}}")
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
        within[last] = _absolute(value, Path(), key)


def parse_recipe(plain: Mapping[str, Any], source: str) -> Recipe:
    """Builds and validates a recipe from plain data; errors name `source`."""
    rest = dict(plain)
    chosen = {table: _parse_named(table, rest.pop(table, {}), source) for table in NAMED}
    kinds = {table: type(thing) for table, thing in chosen.items()}
    try:
        return Recipe.model_validate({**rest, **chosen})
    except ValidationError as error:
        raise UserError(_sentence(error, rest, source, kinds)) from error


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
        raise UserError(_sentence(error, fields, source, {table: kind}, prefix=f"{table}.")) from error


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


def _sentence(
    error: ValidationError, plain: Mapping[str, Any], source: str, kinds: Mapping[str, type[Table]], prefix: str = ""
) -> str:
    """A validation error as one sentence: what, where, and what to do."""
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
            return f"{source}: there is no key {key}{_nearest(key, kinds)}"
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
    known = known_keys(kinds)
    table, _, last = key.rpartition(".")
    if re.fullmatch(r"models\.(small|local\[\d+\])", table):
        return _nearest_width(table, last)
    owners = [name for name, kind in NAMED[table].registry.items() if last in kind.model_fields] if table in NAMED else []
    if owners:
        return f" with {table}.{NAMED[table].key} = {named_by(kinds[table])!r}; {_choices(owners)} has it"
    same = [path for path in known if path.rpartition(".")[2] == last]
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


def _choices(names: Iterable[str]) -> str:
    *some, last = names
    return f"{', '.join(some)} or {last}" if some else last

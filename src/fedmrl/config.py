"""Recipes: complete configurations as TOML, read, changed by `key=value`, checked, and written down resolved."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fedmrl.data.partition import PartitionTable
from fedmrl.data.sources import DataTable
from fedmrl.errors import UserError, cause
from fedmrl.files import user_path
from fedmrl.methods import METHODS, Method
from fedmrl.methods.fedmrl import FedMRL
from fedmrl.models import CNN, CNNS, MLP
from fedmrl.table import Table
from fedmrl.training import Training

ModelName = Literal["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"]


def _family(model: Any) -> str:
    return "mlp" if isinstance(model, MLP) or (isinstance(model, Mapping) and "hidden" in model) else "cnn"


# Told apart by a key, not by which of them fits: so a mistake in one is not answered with what the other lacks.
Network = Annotated[Annotated[CNN, Tag("cnn")] | Annotated[MLP, Tag("mlp")], Discriminator(_family)]


class ModelsTable(Table):
    """The recipe's `[models]` table."""

    local: Literal["heterogeneous", "homogeneous"] | Annotated[list[ModelName | Network], Field(min_length=1)] = Field(
        "heterogeneous",
        description="heterogeneous: client k has CNN-(k mod 5 + 1); homogeneous: all CNN-1; or a list, dealt in turn, of "
        "names, of CNNs as {conv1, conv2, fc1, fc2} and of MLPs as {hidden}, a list of widths",
    )
    small: Literal["auto"] | ModelName | Network = Field(
        "auto",
        description="the model that all clients share; auto: the smallest of the local ones (on 3×32×32 images); beside "
        "models from Python CNN-5 (for images of at least 16×16) or an MLP of 64 units, its widths halved until it is no "
        "larger than the smallest of them",
    )

    own: list[str] | None = Field(None, description="the names of models that were given from Python, one for each client")

    @property
    def kinds(self) -> list[CNN | MLP]:
        """The local models there are, in the order in which they are dealt."""
        if self.local == "heterogeneous":
            return list(CNNS.values())
        if self.local == "homogeneous":
            return [CNNS["cnn-1"]]
        return [_model(model) for model in self.local]

    def of_clients(self, clients: int) -> list[CNN | MLP]:
        """The local model of each client."""
        return list(islice(cycle(self.kinds), clients))

    @property
    def shared(self) -> CNN | MLP:
        """The model that all clients share."""
        if self.small == "auto":
            return min(self.kinds, key=lambda model: model.parameters((3, 32, 32), 10))
        return _model(self.small)


def _model(model: str | CNN | MLP) -> CNN | MLP:
    return CNNS[model] if isinstance(model, str) else model


class EvaluationTable(Table):
    """The recipe's `[evaluation]` table."""

    every: Annotated[int, Field(ge=1)] = Field(10, description="rounds between evaluations of all clients")
    mode: str | None = Field(None, description="how to predict, if not the method's default (see 'fedmrl methods')")
    targets: list[Annotated[float, Field(gt=0, le=1)]] = Field(
        [0.5, 0.9], description="accuracies for which rounds, parameters and FLOPs to reach them are counted"
    )


class Recipe(Table):
    """A run, whole: who has what, and what is done with it."""

    seed: Annotated[int, Field(ge=0)] = Field(0, description="everything random follows from it")
    rounds: Annotated[int, Field(ge=1, le=10_000_000)] = Field(100, description="how many rounds are trained")
    clients: Annotated[int, Field(ge=1)] = Field(10, description="how many clients there are")
    participation: Annotated[float, Field(gt=0, le=1)] | Annotated[str, Field(min_length=1)] = Field(
        1.0, description="the share of clients in a round, or a JSON file that lists the clients of each round"
    )
    data: DataTable = DataTable()
    partition: PartitionTable = PartitionTable()
    models: ModelsTable = ModelsTable()
    method: Method = FedMRL()
    training: Training = Training()
    evaluation: EvaluationTable = EvaluationTable()

    @model_validator(mode="after")
    def _method_has_mode(self) -> Self:
        mode, method = self.evaluation.mode, self.method
        if mode is not None and mode not in method.modes:
            raise ValueError(
                f"evaluation.mode is {mode!r}, which {method.name} does not have as it is set; choose {_choices(method.modes)}"
            )
        return self

    @property
    def headline_mode(self) -> str:
        """The mode whose accuracy counts."""
        return self.evaluation.mode or self.method.modes[0]

    @property
    def headline_view(self) -> Literal["own", "aggregated"]:
        """The view whose accuracy counts: with what the server has last, as in the paper, where that makes a difference."""
        return "aggregated" if self.method.hears_server else "own"

    @property
    def views(self) -> tuple[str, ...]:
        """The views whose accuracy is measured: a client as it is, and after hearing the server, if it does."""
        return ("own", "aggregated") if self.method.hears_server else ("own",)

    @property
    def recorded_modes(self) -> list[str]:
        """The modes whose accuracy is recorded in each round, the one that counts first."""
        modes = self.method.modes
        return list(dict.fromkeys([self.headline_mode, *(modes if self.method.records_every_mode else modes[:1])]))

    def evaluates_all(self, number: int) -> bool:
        """Whether all clients are evaluated after this round, counted from 1."""
        return number % self.evaluation.every == 0 or number == self.rounds

    def resolved(self) -> dict[str, Any]:
        """All of it as plain data, defaults written out; what is not set is left out."""
        plain = self.model_dump(exclude={"method"}, exclude_none=True, mode="json")
        plain["method"] = {"name": self.method.name, **self.method.model_dump(exclude_none=True, mode="json")}
        return plain

    def to_toml(self) -> str:
        """The resolved recipe as a file that `fedmrl run` takes."""
        return tomli_w.dumps(self.resolved())

    def with_method(self, method: str | Method, changes: Mapping[str, Any] | None = None) -> "Recipe":
        """The recipe with another method, by its name or as an object, or with other fields of the one it has."""
        if isinstance(method, Method):
            return parse_recipe({**self.tables(), "method": method}, source=method.name)
        fields = self.method.model_dump() if method == self.method.name else {}
        return parse_recipe({**self.tables(), "method": {"name": method, **fields, **(changes or {})}}, source=method)

    def tables(self) -> dict[str, Any]:
        """Its keys and tables, each as it is."""
        return {key: getattr(self, key) for key in type(self).model_fields}


@dataclass(frozen=True)
class NamedRecipe:
    """A recipe with the name it goes by."""

    name: str
    recipe: Recipe


Settings = Mapping[str, Any] | Iterable[str]
"""Changes to a recipe by the paths of its keys: `{"training.lr": 0.05}` or `["training.lr=0.05"]`."""


def load_recipe(recipe: str | Path, settings: Settings = ()) -> Recipe:
    """The recipe of that name or file, with keys changed by their paths.

    >>> load_recipe("quickstart", {"rounds": 3, "method.d1": 20}).method.d1
    20
    """
    return load_named(recipe, settings).recipe


def load_named(recipe: str | Path | Recipe, settings: Settings = (), method: str | Method | None = None) -> NamedRecipe:
    """The recipe that is meant, with the name it goes by: a recipe's name, a TOML file, a run's folder, or a recipe itself.
    `settings` change keys by their paths, after the method was changed, if one is given by its name or as an object.
    """
    if method is not None and not isinstance(method, str | Method):
        raise UserError(f"method is {method!r}; give a method's name, or a method as fedmrl.FedMRL(d1=100)")
    changes = [*_pairs(settings)]
    if isinstance(recipe, Recipe):
        plain, name, source = recipe.tables(), str(recipe.data.name), "settings"
    elif isinstance(recipe, str | Path):
        path, name = _find(recipe)
        plain, source = _read(path), str(recipe)
    else:
        raise UserError(f"recipe is {recipe!r}; give the name of a recipe, a TOML file, a run's folder or a fedmrl.Recipe")
    if isinstance(method, Method):
        plain["method"] = method
    elif method is not None:
        changes = [("method.name", method), *((key, value) for key, value in changes if key != "method.name")]
    return NamedRecipe(name, parse_recipe(_changed(plain, changes), source))


def _changed(plain: dict[str, Any], changes: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    # The method's name comes first: setting it drops the fields of the method that the recipe named.
    for key, value in sorted(changes, key=lambda pair: pair[0] != "method.name"):
        _set(plain, key, value)
    return plain


def known_recipes() -> dict[str, str]:
    """The recipes that come with fedmrl, by name, each with what it says of itself."""
    root = _packaged()
    return {
        path.relative_to(root).with_suffix("").as_posix(): path.read_text().splitlines()[0].lstrip("# ")
        for path in sorted(root.rglob("*.toml"), key=lambda path: (path.parent != root, _natural(path)))
    }


def _natural(path: Path) -> list[int | str]:
    """Numbers by their value: n50 before n100."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]


def _packaged() -> Path:
    return Path(str(files("fedmrl"))) / "recipes"


def _find(recipe: str | Path) -> tuple[Path, str]:
    try:
        path = Path(recipe).expanduser()
        folder = path.is_dir()
    except (OSError, RuntimeError) as error:
        raise UserError(f"recipe: {str(recipe)[:80]!r} cannot be the name of a file ({cause(error)})") from error
    if folder:
        if not (path / "config.toml").is_file():
            raise UserError(f"{path} is a folder without a run's config.toml; name a recipe, a TOML file or a run's folder")
        return path / "config.toml", path.name
    if path.suffix == ".toml" or path.is_file():
        return path, path.stem
    if str(recipe) in known_recipes():
        return _packaged() / f"{recipe}.toml", str(recipe)
    near = difflib.get_close_matches(str(recipe), known_recipes(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(f"there is no recipe {str(recipe)!r}; {hint}'fedmrl recipes' lists them, or name a TOML file")


def _read(path: Path) -> dict[str, Any]:
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not TOML: it is not text") from error
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    # A file that a recipe names lies beside the recipe, wherever that is run from.
    for key in PATHS:
        table, _, last = key.rpartition(".")
        within = plain.get(table) if table else plain
        if isinstance(within, dict) and last in within:
            within[last] = _absolute(within[last], path.parent)
    return plain


PATHS = ("data.dir", "data.file", "partition.file", "participation")


def _absolute(value: Any, folder: Path) -> Any:
    """A path that means the same from everywhere; what is no text is left as it is, and so is an empty one."""
    return str(folder.absolute() / user_path(value, "recipe")) if isinstance(value, str) and value else value


def _pairs(settings: Settings) -> Iterator[tuple[str, Any]]:
    if isinstance(settings, Mapping):
        yield from ((str(key), value) for key, value in settings.items())
        return
    listed = list(settings) if isinstance(settings, Iterable) and not isinstance(settings, str) else [None]
    if not all(isinstance(one, str) for one in listed):
        raise UserError(f"settings is {settings!r}; give keys with their values, as in {{'training.lr': 0.05}}")
    for setting in map(str, listed):
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set {setting}: expected key=value, as in --set training.lr=0.05")
        try:
            yield key.strip(), parse_value(text.strip())
        except (RecursionError, ValueError) as error:
            raise UserError(f"--set {key.strip()}: its value is too long or too deep to be one ({error})") from error


def parse_value(text: str) -> Any:
    """A value as TOML writes it; text that is not TOML stands for itself.

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
        if isinstance(found := within.setdefault(table, {}), Table):  # of a recipe that is changed from Python
            within[table] = {**({"name": found.name} if isinstance(found, Method) else {}), **found.model_dump()}
        within = within[table]
        if not isinstance(within, dict):
            raise UserError(f"--set {key}: {table} is a value, not a table")
    if key == "method.name" and within.get("name") != value:
        within.clear()  # the recipe's other fields belong to the method that it names
    within[last] = _absolute(value, Path()) if key in PATHS else value


def parse_recipe(plain: Mapping[str, Any], source: str) -> Recipe:
    """A recipe from plain data, checked; `source` is named in errors."""
    rest = dict(plain)
    method = _parse_method(rest.pop("method", {"name": FedMRL.name}), source)
    try:
        return Recipe.model_validate({**rest, "method": method})
    except ValidationError as error:
        raise UserError(_sentence(error, rest, source, type(method))) from error


def _parse_method(table: Any, source: str) -> Method:
    if isinstance(table, Method):
        return table
    if not isinstance(table, dict):
        raise UserError(f"{source}: method is {table!r}; it must be a table with a name")
    fields = dict(table)
    name = fields.pop("name", FedMRL.name)
    if not isinstance(name, str) or name not in METHODS:
        near = difflib.get_close_matches(str(name).lower(), METHODS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else f"; choose {_choices(METHODS)}"
        raise UserError(f"{source}: method.name is {name!r}, which is no method{hint}")
    try:
        return METHODS[name].model_validate(fields)
    except ValidationError as error:
        raise UserError(_sentence(error, fields, source, METHODS[name], prefix="method.")) from error


def settings_of(config: str) -> dict[str, Any]:
    """Every key of a recipe by its path; one that the version which wrote it did not know yet has its default."""
    plain = tomllib.loads(config)
    with suppress(UserError):  # a version that knows other keys: they are taken as they stand
        plain = tomllib.loads(parse_recipe(plain, "config.toml").to_toml())
    return _flat(plain)


def _flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables as one, each value by its path."""
    found: dict[str, Any] = {}
    for key, value in plain.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def known_keys(method: type[Method]) -> dict[str, Any]:
    """Every key that a recipe with this method may have, by its path, with its field."""

    def walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, field in model.model_fields.items():
            if name == "method":
                continue
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from walk(field.annotation, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", field

    return {**dict(walk(Recipe, "")), "method.name": None, **dict(walk(method, "method."))}


_WANTED = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "it must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "it must be a number"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "it must be a table"),
    **dict.fromkeys(("list_type", "tuple_type"), "it must be a list"),
    "missing": "it lacks a value",
    "too_short": "its length must be at least {min_length}",
    "greater_than": "it must be above {gt:g}",
    "greater_than_equal": "it must be at least {ge:g}",
    "less_than": "it must be below {lt:g}",
    "less_than_equal": "it must be at most {le:g}",
}


def _sentence(error: ValidationError, plain: Mapping[str, Any], source: str, method: type[Method], prefix: str = "") -> str:
    """The first thing wrong, as what, where, and what to do."""
    # Of the branches of a union, the one that got furthest into what the user wrote is the one that was meant; of those that
    # got equally far, one that knows what is wrong with it, not which names there were instead.
    problem = max(error.errors(), key=lambda one: (len(_where(one["loc"], plain)[0]), _knows(one)))
    path, value = _where(problem["loc"], plain)
    context = problem.get("ctx", {})
    key = f"{prefix}{path}"
    match problem["type"]:
        case "extra_forbidden":
            return f"{source}: there is no key {key}{_nearest(key, method)}"
        case "value_error":
            where = key.rstrip(".")
            said = "" if isinstance(value, Mapping) else f" is {value!r}"
            return f"{source}: {where}{said}{'; ' if said else ': ' if where else ''}{context['error']}"
        case "literal_error":
            same = [e for e in error.errors() if e["type"] == "literal_error" and _where(e["loc"], plain)[0] == path]
            wanted = f"choose {', '.join(dict.fromkeys(e['ctx']['expected'].replace(' or ', ', ') for e in same))}"
        case kind if kind in _WANTED:
            wanted = _WANTED[kind].format(**context)
        case _:
            message = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
            wanted = f"it {message}" if message.startswith("should") else message
    return f"{source}: {key} is {value!r}; {wanted}"


def _knows(problem: ErrorDetails) -> bool:
    """Whether a branch of a union took the value for its own."""
    a_list_was_left_out = problem["type"] == "list_type" and isinstance(problem["input"], Mapping)
    return problem["type"] in ("value_error", "too_short") or a_list_was_left_out


def _where(loc: Sequence[int | str], plain: Any) -> tuple[str, Any]:
    """The path of a problem as the user wrote it, and the value there: pydantic also names the branch of a union."""
    path, value = "", plain
    for step in loc:
        if isinstance(value, Mapping) and step in value:
            path, value = (f"{path}.{step}" if path else str(step)), value[step]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            path, value = f"{path}[{step}]", value[step]
    return path, value


def _nearest(key: str, method: type[Method]) -> str:
    known = known_keys(method)
    table, _, last = key.rpartition(".")
    if re.fullmatch(r"models\.(small|local\[\d+\])", table):
        return _nearest_width(table, last)
    same = [path for path in known if path.rpartition(".")[2] == last]
    # Last words are compared, as keys of one table are alike by their table alone; within the table, more loosely.
    of_table = {path.rpartition(".")[2]: path for path in known if path.rpartition(".")[0] == table}
    words = {path.partition(".")[0]: path for path in reversed([*known])} | {path.rpartition(".")[2]: path for path in known}
    near = same or [of_table[word] for word in difflib.get_close_matches(last, of_table, cutoff=0.5)]
    near = near or [words[word] for word in difflib.get_close_matches(last, words, cutoff=0.7)]
    return f"; did you mean {near[0]}?" if near else "; 'fedmrl recipes --keys' lists the keys there are"


def _nearest_width(table: str, key: str) -> str:
    widths = list(CNN.model_fields)
    near = difflib.get_close_matches(key, ["hidden", *widths], n=1)
    if near and near != [key]:
        return f"; did you mean {table}.{near[0]}?"
    return f"; a model has hidden alone, or any of {', '.join(widths)}"


def _choices(names: Iterable[str]) -> str:
    *some, last = names
    return f"{', '.join(some)} or {last}" if some else last

"""An organisation's TOML: its model, its data, where its agent listens, and the bounds of what it takes part in."""

import inspect
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import tomli_w
import torch
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from torch import nn

from fedmrl.config import ModelsTable, Network, Recipe, sentence
from fedmrl.data import Dataset, dataset_of
from fedmrl.data.partition import ClientSplit, train_test
from fedmrl.data.sources import AtClients
from fedmrl.engines import Member
from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.federation.setup import for_data
from fedmrl.files import user_path
from fedmrl.models import ModelSpec, OwnModel
from fedmrl.models.split import check_split
from fedmrl.randomness import host_seeded
from fedmrl.registry import import_all, is_file, load_function
from fedmrl.schema import first_problem
from fedmrl.table import IS_PATH, Table

Count = Annotated[int, Field(ge=1)]


class Bounds(Table):
    """What the agent lets its peer ask for; all else is refused."""

    methods: list[str] = Field(["fedmrl"], description="the methods that may be trained")
    leaves: list[Annotated[str, Field(min_length=1)]] = Field(
        ["small."], description="how the names of tensors that may leave begin; small. is the model that all clients share"
    )
    max_parameters: Count = Field(5_000_000, description="the most numbers in one upload")
    recipe_sha256: list[str] = Field(
        [], description="the SHA-256 of each recipe's text that may be run; empty: any recipe within the other bounds"
    )
    max_rounds: Count = Field(500, description="the most rounds of a run")
    max_clients: Count = Field(10_000, description="the most clients of a run")
    max_runs: Count = Field(20, description="the most runs that are known; delete folders of old ones under state/runs")
    max_evaluations: Count = Field(2000, description="the most evaluations of a run; each tells something of the test samples")
    max_epochs: Count = Field(20, description="the most passes over the data in a round")
    min_batch_size: Count = Field(8, description="the fewest samples in a step; few make it easier to infer a single one")
    max_batch_size: Count = Field(1024, description="the most samples in a step")
    max_message_bytes: Count = Field(64 * 1024**2, description="the most bytes of a message's arrays")
    max_received_norm: Annotated[float, Field(gt=0)] = Field(1e4, description="the largest norm of what the server sends")
    max_upload_norm: Annotated[float, Field(gt=0)] = Field(1e4, description="the largest norm of what leaves")
    class_counts: bool = Field(
        False,
        description="whether a hello tells how many samples of each class there are; "
        "fedproto's uploads tell it too, if counts is in leaves",
    )
    recipe_imports: list[str] = Field(
        [], description="entries that a recipe's imports may have; the agent imports what its own imports list, nothing else"
    )
    recipe_paths: list[str] = Field([], description="paths that a recipe may name; the agent does not read them")

    @model_validator(mode="after")
    def _batches(self) -> Self:
        if self.min_batch_size > self.max_batch_size:
            raise ValueError(f"min_batch_size is {self.min_batch_size}, above max_batch_size, {self.max_batch_size}")
        return self


class Standardise(Table):
    """Mean and standard deviation of each channel or feature."""

    mean: list[float]
    std: list[Annotated[float, Field(gt=0)]]


class ClientConfig(Table):
    """An organisation's TOML file. Its paths are relative to its folder."""

    name: Annotated[str, Field(min_length=1, max_length=100)] = Field(description="the name that the server shows")
    model: str | dict[str, Any] = Field(
        description="package.module:function or file.py:function, called with nothing or with a sample's shape and the number "
        "of classes, returns an nn.Module; or a model of fedmrl by name, or its widths as in a recipe"
    )
    data: str = Field(
        description="an .npz with x and y, and optionally x_test and y_test; a .csv, .tsv or .parquet with columns of numbers; "
        "a folder of images; or package.module:function or file.py:function, which returns x and y, and optionally x_test and "
        "y_test, or other data that fedmrl.run takes. Rows of whole numbers of 32 or 64 bits are tokens"
    )
    classes: Count | Annotated[list[str], Field(min_length=1)] = Field(
        description="the classes' names or their number, equal for all clients; labels are names, or count them from 0"
    )
    label: str | None = Field(None, description="the column of the labels in a table; by default label or labels")
    size: Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=2, max_length=2)] | None = Field(
        None, description="height and width to which images in a folder are scaled; by default they must be of one size"
    )
    last: str | None = Field(None, description="the name of the model's last linear layer; by default it is looked for")
    output: str | int | None = Field(
        None, description="where the logits are, if the model returns a dict, a tuple or a list: a key or a place"
    )
    model_label: str = Field("", description="what the server calls the model; by default its name in fedmrl, or 'own model'")
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="share of the data used for testing, if there are no test samples; drawn by the recipe's seed"
    )
    standardise: Standardise | None = Field(
        None, description="mean and standard deviation of each channel or feature; by default the training samples' own"
    )
    socket: Annotated[str, IS_PATH] = Field("agent.sock", description="the Unix socket to listen at")
    socket_group: str | None = Field(None, description="the group that may connect; by default the agent's own")
    uids: list[Annotated[int, Field(ge=0)]] = Field(
        [], description="the numbers of the users who may connect; empty: all whom the socket's mode lets in"
    )
    state: Annotated[str, IS_PATH] = Field("state", description="the folder for private states and the audit log")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to train")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None,
        description="CPU threads for training, by default torch's choice; results differ in the last bits with their number",
    )
    imports: list[str] = Field([], description="Python files or modules that register classes of your own")
    max_connections: Annotated[int, Field(ge=2, le=1000)] = Field(8, description="connections at a time")
    seconds: Annotated[float, Field(gt=0, le=600)] = Field(10, description="time for a whole message to arrive or to be taken")
    bounds: Bounds = Bounds()

    @model_validator(mode="after")
    def _distinct_classes(self) -> Self:
        if isinstance(self.classes, list) and len(set(self.classes)) < len(self.classes):
            twice = next(name for name in self.classes if self.classes.count(name) > 1)
            raise ValueError(f"classes has {twice!r} twice; name each class once")
        return self


@dataclass(frozen=True)
class Organisation:
    """What an organisation brings: its TOML, its samples and its model."""

    config: ClientConfig
    data: Dataset
    model: ModelSpec

    def in_run(self, recipe: Recipe, client: int) -> tuple[Dataset, Member]:
        """The data and the client that it is in a run of this recipe, where it has this number."""
        data, member = self.member(recipe.seed, client)
        if isinstance(recipe.data, AtClients) and recipe.data.vocabulary is not None:
            data = replace(data, vocabulary=recipe.data.vocabulary)
        return data, member

    def member(self, seed: int, client: int) -> tuple[Dataset, Member]:
        """The data and the client that it is in a run of this seed, where it has this number."""
        data, train = self.data, self.data.official_train
        positions = np.arange(len(data.y))
        if train < len(data.y):
            own = ClientSplit(positions[:train], positions[train:])
        else:
            own = train_test(positions, data.y, self.config.test_share, seed, client)
        if not len(own.train) or not len(own.test):
            raise UserError(f"data gives {len(own.train)} training and {len(own.test)} test samples; give at least one of each")
        given = self.config.standardise
        data = data.of_training(own.train, standardise=given is None)
        if given is not None:
            data = replace(data, mean=np.array(given.mean), std=np.array(given.std))
        return data, Member(own.train, own.test, self.model)

    def try_model(self) -> None:
        """Builds the model and runs it on a sample; raises `UserError` if either fails."""
        shape, classes = self.data.shape, len(self.data.classes)
        try:
            with host_seeded(0, "check"):
                made = for_data(self.model, self.data).build(shape, classes)
                check_split(made, self.data.blank(2, torch.device("cpu"), torch.float32), classes)
        except UserError:
            raise
        except CODE_FAILS as error:
            raise UserError(
                f"model {self.model.label!r} does not run on a sample of shape {list(shape)} ({cause(error)}); "
                "fix it, or choose another"
            ) from error


def read_config(path: Path) -> ClientConfig:
    """Reads an organisation's TOML, with absolute paths."""
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); 'fedmrl client init' makes one") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    try:
        config = ClientConfig.model_validate(plain)
    except ValidationError as error:
        raise UserError(_sentence(error, plain, str(path))) from error
    folder = path.parent.absolute()
    changes = {key: str(folder / user_path(getattr(config, key), key)) for key in ClientConfig.path_fields()}
    changes |= {key: _in_folder(getattr(config, key), folder, key) for key in ("model", "data")}
    imports = [str(folder / user_path(name, "imports")) if is_file(name) else name for name in config.imports]
    return config.model_copy(update={**changes, "imports": imports})


def _sentence(error: ValidationError, plain: dict[str, Any], source: str) -> str:
    for problem in error.errors():
        if problem["type"] == "missing":
            key = ".".join(map(str, problem["loc"]))
            field = ClientConfig.model_fields.get(key)
            return f"{source}: {key} is missing; give {field.description if field else 'it as well'}"
    return sentence(error, plain, source, lambda key: "; 'fedmrl client init' writes all keys")


def _in_folder(text: Any, folder: Path, key: str) -> Any:
    """A file, or a file's function, with an absolute path."""
    if not isinstance(text, str):
        return text
    source, colon, name = text.rpartition(":")
    if colon:
        return f"{folder / user_path(source, key)}:{name}" if is_file(source) else text
    return str(folder / user_path(text, key)) if key == "data" else text


def load_organisation(path: Path) -> Organisation:
    """Reads an organisation's TOML, imports its classes, reads its data and finds its model."""
    config = read_config(path)
    import_all(config.imports)
    classes = config.classes if isinstance(config.classes, list) else [str(label) for label in range(config.classes)]
    data = _data(config, classes, f"{path}: data")
    given, channels = config.standardise, data.x.shape[1]
    if given is not None and data.vocabulary is not None:
        raise UserError(f"{path}: standardise is given, and data has tokens, which are not standardised; leave it out")
    if given is not None and {len(given.mean), len(given.std)} != {channels}:
        raise UserError(f"{path}: standardise must have {channels} values each for mean and std, as the data has channels")
    organisation = Organisation(config, data, _model(config, data.shape, len(classes), f"{path}: model"))
    if isinstance(organisation.model, OwnModel):
        try:
            organisation.try_model()
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    return organisation


def _data(config: ClientConfig, classes: list[str], where: str) -> Dataset:
    """The organisation's samples, with all classes of the run."""
    _, colon, name = config.data.rpartition(":")
    is_function = colon and name.isidentifier()
    given, source = (_returned(config.data, where), where) if is_function else (Path(config.data), config.data)
    size = (config.size[0], config.size[1]) if config.size else None
    data = dataset_of(given, config.label, size, "data", [source], classes)
    if words := [column.name for column in data.columns if column.words is not None]:
        raise UserError(
            f"{source}: column {words[0]!r} has words, which each client would number in its own way; give numbers on which "
            "all clients agree"
        )
    return data


def _returned(name: str, where: str) -> Any:
    """What the data's function returns, in a form that `dataset_of` takes as one client's."""
    try:
        found = load_function(name, where)()
    except UserError:
        raise
    except CODE_FAILS as error:
        raise UserError(f"{where}: {name} fails ({cause(error)}); fix it") from error
    found = tuple(found) if isinstance(found, list) else found
    if isinstance(found, np.ndarray | torch.Tensor) or (isinstance(found, tuple) and len(found) not in (2, 4)):
        raise UserError(f"{where}: {name} must return x and y, or x, y, x_test and y_test")
    return found


def _model(config: ClientConfig, shape: tuple[int, ...], classes: int, where: str) -> ModelSpec:
    if not isinstance(config.model, str) or ":" not in config.model:
        try:
            chosen = TypeAdapter(Network).validate_python(config.model)
        except ValidationError as error:
            raise UserError(f"{where} is {config.model!r}; {first_problem(error)}") from error
        return ModelsTable(local=[chosen]).kinds[0]
    function = load_function(config.model, where)
    try:
        parameters = inspect.signature(function).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    except (TypeError, ValueError):
        needed = []
    if len(needed) not in (0, 2):
        raise UserError(f"{where}: {config.model} must take nothing, or a sample's shape and the number of classes")

    def make() -> nn.Module:
        made: nn.Module = function(shape, classes) if needed else function()
        return made

    return OwnModel(config.model_label or "own model", make, config.last, config.output)


def template() -> str:
    """A commented TOML with every key and its default, to be filled in."""
    required = {"name": "our organisation", "model": "model.py:make", "data": "data.npz", "classes": 10}
    optional = {
        "label": '"diagnosis"',
        "size": "[32, 32]",
        "last": '"head"',
        "output": '"logits"',
        "standardise": "{ mean = [33.3], std = [78.6] }",
        "socket_group": '"flower"',
        "threads": "1",
    }
    lines = ["# What this organisation brings to a federation, and the bounds of what it takes part in.", ""]
    for table, fields in (("", ClientConfig.model_fields), ("bounds", Bounds.model_fields)):
        lines += [f"[{table}]", ""] if table else []
        for key, field in fields.items():
            if key == "bounds":
                continue
            value = required[key] if field.is_required() else field.default
            shown = tomli_w.dumps({key: value}).strip() if value is not None else f"# {key} = {optional[key]}"
            lines += [f"# {field.description}", shown, ""]
    return "\n".join(lines)

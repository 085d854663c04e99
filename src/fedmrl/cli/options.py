"""Options and arguments shared by several commands."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmrl.errors import UserError
from fedmrl.recipes import known_recipes

if TYPE_CHECKING:
    from fedmrl.config import NamedRecipe
    from fedmrl.data import Dataset

ENGINE_NAMES = ("reference", "batched", "ray")
STORES = ("device", "host", "disk")
DEVICES = ("cpu", "cuda")


def check_choice(value: str, choices: Sequence[str], name: str) -> str:
    """Returns the value of an option or argument, or raises `UserError` unless it is one of the choices."""
    if value in choices:
        return value
    near = difflib.get_close_matches(value, choices, n=1)
    *some, last = choices
    hint = f"did you mean {near[0]!r}?" if near else f"choose {', '.join(some)} or {last}"
    raise UserError(f"{name}: there is no {value!r}; {hint}")


def _choice(option: str, help_: str, *choices: str) -> Any:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    def check(value: str) -> str:
        return check_choice(value, choices, option)

    return typer.Option(option, help=help_, callback=check, autocompletion=complete)


def _recipes(incomplete: str) -> list[tuple[str, str]]:
    return [(name, says) for name, says in known_recipes().items() if name.startswith(incomplete)]


RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="name of a recipe, TOML file, or folder of a run", autocompletion=_recipes),
]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a key of the recipe; can be repeated")
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="FILE", help="import a Python file or module that registers your classes; can be repeated"
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="output folder (default: a new one under runs/)")]
DataFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="your own data: .npz, .csv, .parquet or a folder of images; given several times, one for each client",
    ),
]
Label = Annotated[str | None, typer.Option("--label", metavar="COLUMN", help="the column of the labels in the files of --data")]
Device = Annotated[str, _choice("--device", "auto, cpu or cuda", "auto", *DEVICES)]
StoreName = Annotated[str, _choice("--store", "where clients' states are stored: auto, device, host or disk", "auto", *STORES)]
EngineName = Annotated[
    str,
    _choice("--engine", "auto, reference, batched, or ray (the cluster at RAY_ADDRESS, or a local one)", "auto", *ENGINE_NAMES),
]
OnRay = Annotated[
    bool, typer.Option("--ray", help="each run on a CPU of the Ray cluster at RAY_ADDRESS, or of one started here")
]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON, for scripts")]


def seeds_of(seeds: str | None, default: int) -> list[int]:
    """Parses `--seeds`; without it, returns the default seed.

    >>> seeds_of("0,2", 7), seeds_of(None, 7)
    ([0, 2], [7])
    """
    if seeds is None:
        return [default]
    try:
        chosen = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise UserError(f"--seeds is {seeds!r}; give whole numbers separated by commas, such as 0,1,2") from None
    if min(chosen) < 0 or len(set(chosen)) < len(chosen):
        raise UserError(f"--seeds is {seeds!r}; seeds must be different and at least 0")
    return chosen


def split_names(names: str | None) -> list[str] | None:
    """Splits names separated by commas.

    >>> split_names("fp32, bf16"), split_names(None)
    (['fp32', 'bf16'], None)
    """
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def check_parent(path: Path | None, option: str) -> None:
    """Raises `UserError` if a file's folder does not exist."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UserError(f"{option}: {path} cannot be written; name a file in an existing folder")


def on_files(
    recipe: str, settings: Sequence[str] | None, imports: Sequence[str] | None, files: Sequence[Path] | None, label: str | None
) -> "tuple[NamedRecipe, Dataset | None]":
    """The recipe of a name with changed keys, and the data in the user's files, if there are any."""
    from fedmrl.cli.terminal import notice
    from fedmrl.config import load_named
    from fedmrl.config.settings import pairs
    from fedmrl.data import sources
    from fedmrl.federation.launch import check_clients, with_data

    changes = dict(pairs(settings or []))
    if not files:
        if label is not None:
            raise UserError("--label is for the files of --data, and there are none; set data.label in the recipe instead")
        return load_named(recipe, changes, imports=imports or [], on_notice=notice), None
    changes |= {"data.name": "files", "data.files": [str(file) for file in files]}
    changes |= {"data.label": label} if label is not None else {}
    named = load_named(recipe, changes, imports=imports or [], on_notice=notice)
    data = sources.load(named.recipe.data)
    check_clients(changes, data)
    return replace(named, recipe=with_data(named.recipe, data, notice)), data

"""Options and arguments that several commands have."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedmrl.errors import UserError
from fedmrl.recipes import known_recipes

ENGINES = ("reference", "batched", "ray")
STORES = ("device", "host", "disk")
DEVICES = ("cpu", "cuda")


def _one_of(option: str, *choices: str) -> Any:
    """Refuses any other value of an option, and completes these."""

    def check(value: str) -> str:
        if value not in choices:
            *some, last = choices
            raise UserError(f"{option}: there is no {value!r}; choose {', '.join(some)} or {last}")
        return value

    return check


def _choice(option: str, help_: str, *choices: str) -> Any:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return typer.Option(option, help=help_, callback=_one_of(option, *choices), autocompletion=complete)


def _recipes(incomplete: str) -> list[tuple[str, str]]:
    return [(name, says) for name, says in known_recipes().items() if name.startswith(incomplete)]


RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="a recipe's name, a TOML file, or a run's folder", autocompletion=_recipes),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a key of the recipe; again for more")
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE", help="import a Python file or module that registers things by name"),
]
Out = Annotated[Path | None, typer.Option("--out", help="the folder to write; a new one under runs/ if not given")]
Device = Annotated[str, _choice("--device", "auto, cpu or cuda", "auto", *DEVICES)]
StoreName = Annotated[str, _choice("--store", "where clients' states are kept: auto, device, host or disk", "auto", *STORES)]
EngineName = Annotated[
    str, _choice("--engine", "auto, reference, batched, or ray: the cluster at RAY_ADDRESS, or one made here", "auto", *ENGINES)
]
OnRay = Annotated[
    bool, typer.Option("--ray", help="each run on a CPU of the Ray cluster at RAY_ADDRESS, or of one started here")
]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON, for scripts")]


def seeds_of(seeds: str | None, default: int) -> list[int]:
    """The seeds that `--seeds` names, or the default one.

    >>> seeds_of("0,2", 7), seeds_of(None, 7)
    ([0, 2], [7])
    """
    if seeds is None:
        return [default]
    try:
        chosen = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise UserError(f"--seeds is {seeds!r}; give whole numbers separated by commas, as in 0,1,2") from None
    if min(chosen) < 0 or len(set(chosen)) < len(chosen):
        raise UserError(f"--seeds is {seeds!r}; seeds must be different, and 0 or more")
    return chosen


def listed(names: str | None) -> list[str] | None:
    """Names that are separated by commas.

    >>> listed("fp32, bf16"), listed(None)
    (['fp32', 'bf16'], None)
    """
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def check_parent(path: Path | None, option: str) -> None:
    """Refuses a file to write whose folder is not there."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UserError(f"{option}: {path} cannot be written; name a file in a folder that there is")

"""The commands that train: run, compare, bench."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from fedmrl.cli.options import (
    AsJson,
    DataFiles,
    Device,
    EngineName,
    Imports,
    Label,
    OnRay,
    Out,
    RecipeName,
    SettingsOption,
    StoreName,
    check_parent,
    on_files,
    seeds_of,
    split_names,
)
from fedmrl.cli.terminal import complain, end, err, notice, print_json, print_text, show, table
from fedmrl.errors import InterruptedRun, UserError
from fedmrl.files import user_path, write_whole

if TYPE_CHECKING:
    from fedmrl.config import Recipe
    from fedmrl.data import Dataset
    from fedmrl.results import Record


def run(
    recipe: RecipeName,
    settings: SettingsOption = None,
    imports: Imports = None,
    files: DataFiles = None,
    label: Label = None,
    out_dir: Out = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    store: StoreName = "auto",
    seeds: Annotated[
        str | None, typer.Option(help="run several seeds together, separated by commas; each gets a folder in --out")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the run in --out, or in RECIPE if that is a run's folder")
    ] = False,
    ray: OnRay = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="also write each round for TensorBoard (for several seeds, their mean)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train one method."""
    from fedmrl.cli import render
    from fedmrl.federation.launch import run_seeds
    from fedmrl.progress import watching
    from fedmrl.report.tensorboard import writing
    from fedmrl.results import DivergedRun, RunResult

    begun = _runs_of_seeds(recipe)
    if begun and not resume:
        raise UserError(
            f"{recipe} holds runs of several seeds; continue them with --resume, or name one of them, such as {begun[0]}"
        )
    source = next(path for path in begun if (path / "config.toml").exists()) if begun else recipe
    named, data = on_files(str(source), settings, imports, files, label)
    default = ",".join(path.name.removeprefix("seed-") for path in begun) if begun else None
    chosen = seeds_of(seeds or default, named.recipe.seed)
    several = len(chosen) > 1 or bool(begun)
    if several and resume and out_dir is None and not begun:
        raise UserError("--resume needs the folder that holds the runs, as in 'fedmrl run FOLDER --resume'")
    folder = out_dir or _resumed(recipe, resume) or _new_folder(f"{named.name}-{named.recipe.method.name}")
    outs = [folder / f"seed-{seed}" for seed in chosen] if several else [folder]
    if several and resume and not any((out / "config.toml").exists() for out in outs):
        raise UserError(f"{folder} has no runs of these seeds to resume; leave out --resume to start them there")
    try:
        if ray:
            _run_on_cluster(named.recipe, data, chosen, outs, engine, device)
        with (
            watching(err(), named.recipe.method.title, named.recipe.rounds) as progress,
            writing(tensorboard) if tensorboard else nullcontext() as write,
        ):
            done = run_seeds(
                named.recipe, chosen, outs=outs, resume=resume or ray, device=device, engine=engine, store=store, data=data,
                on_round=_both(progress, write) if write else progress, on_notice=notice,
            )  # fmt: skip
    except InterruptedRun as stopped:
        given = {"device": device, "engine": engine, "store": store}
        options = "".join(f" --{name} {value}" for name, value in given.items() if value != "auto")
        options += f" --tensorboard {shlex.quote(str(tensorboard))}" if tensorboard else ""
        end(f"{stopped}; continue with: fedmrl run {shlex.quote(str(folder))} --resume{options}", 130)
    if not several:
        (one,) = done
        if isinstance(one, DivergedRun):
            raise one.error()
        print_json({"folder": str(folder), **one.plain()}) if as_json else render.one_run(named.recipe, one, folder)
        return
    if as_json:
        print_json({"folder": str(folder), "runs": [one.plain() for one in done]})
    else:
        render.several_seeds(named.recipe, [one for one in done if isinstance(one, RunResult)], folder)
    diverged = [one for one in done if isinstance(one, DivergedRun)]
    for one in diverged:
        complain(f"seed {one.seed}: {one.diverged.reason}")
    if diverged:
        raise typer.Exit(3)


def _run_on_cluster(
    recipe: "Recipe", data: "Dataset | None", seeds: Sequence[int], outs: Sequence[Path], engine: str, device: str
) -> None:
    """Runs each seed that has not begun on a CPU of the cluster, into its folder."""
    from fedmrl.federation.tasks import WholeRun, check_tasks, run_elsewhere

    check_tasks(engine, device)
    if len(seeds) == 1:
        raise UserError("--ray spreads several seeds over a cluster; name them with --seeds, or give --engine ray")
    runs = {
        f"seed {seed}": WholeRun(recipe.model_copy(update={"seed": seed}), [seed], [out])
        for seed, out in zip(seeds, outs, strict=True)
    }
    run_elsewhere(runs, models=None, small=None, data=data, keep=True, tell=notice)


def _new_folder(name: str) -> Path:
    """Creates a folder under `runs/`; it is removed if the command ends before writing to it."""
    from fedmrl.federation.folder import drop_empty, new_folder

    root_is_new = not Path("runs").exists()
    folder = new_folder(name)
    made = [folder, folder.parent] if root_is_new else [folder]
    click.get_current_context().call_on_close(lambda: drop_empty(*made))
    return folder


def _runs_of_seeds(recipe: str) -> list[Path]:
    """The runs in a folder written by `--seeds`, ordered by seed; some may not have started. Empty if it is no such folder."""
    try:
        folder = user_path(recipe, "RECIPE")
        if not folder.is_dir() or (folder / "config.toml").exists():
            return []
    except OSError:  # not a valid path, so it may be a recipe's name
        return []
    found = [path for path in folder.glob("seed-*") if path.is_dir() and path.name[5:].isdecimal()]
    begun = any((path / "config.toml").exists() for path in found)
    return sorted(found, key=lambda path: int(path.name[5:])) if begun else []


def _both(first: "Callable[[Record], None]", second: "Callable[[Record], None]") -> "Callable[[Record], None]":
    def on_round(record: "Record") -> None:
        first(record)
        second(record)

    return on_round


def _resumed(recipe: str, resume: bool) -> Path | None:
    if not resume:
        return None
    folder = user_path(recipe, "RECIPE")
    if not folder.is_dir():
        raise UserError("--resume needs the folder of the run, as in 'fedmrl run runs/quickstart-fedmrl-1 --resume'")
    return folder


def compare(
    recipe: RecipeName,
    methods: Annotated[str | None, typer.Option(help="methods, separated by commas (default: all)")] = None,
    settings: SettingsOption = None,
    imports: Imports = None,
    files: DataFiles = None,
    label: Label = None,
    seeds: Annotated[str | None, typer.Option(help="seeds, separated by commas (default: the recipe's seed)")] = None,
    out_dir: Out = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    store: StoreName = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="continue the comparison in --out")] = False,
    ray: OnRay = False,
    keep: Annotated[
        bool, typer.Option("--keep-models/--no-keep-models", help="keep every client's final model, for predict and export")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Compare several methods on the same split of the data."""
    from fedmrl.cli import render
    from fedmrl.comparison import compare as compare_methods
    from fedmrl.progress import Overall, watching

    of_methods = [setting for setting in settings or [] if setting.startswith("method.")]
    of_all = [setting for setting in settings or [] if setting not in of_methods]
    named, data = on_files(recipe, of_all, imports, files, label)
    recipes = _recipes(named.recipe, _names(methods), of_methods)
    chosen = seeds_of(seeds, named.recipe.seed)
    if resume and out_dir is None:
        raise UserError("--resume needs the folder of the comparison; name it with --out")
    folder = out_dir or _new_folder(f"{named.name}-compare")
    width = max(len(r.method.title) for r in recipes.values())
    overall = Overall(sum(r.rounds for r in recipes.values()))

    def progress_of(name: str) -> Any:
        label = recipes[name].method.title.ljust(width) + (f" {len(chosen)} seeds" if len(chosen) > 1 else "")
        return watching(err(), label, recipes[name].rounds, overall)

    try:
        result = compare_methods(
            recipes, seeds=chosen, data=data, out=folder, title=named.name, device=device, engine=engine, store=store,
            resume=resume, ray=ray, keep=keep, watch=progress_of, on_notice=notice,
        )  # fmt: skip
    except (InterruptedRun, KeyboardInterrupt) as stopped:
        said = str(stopped) or "stopped between two runs"
        end(f"{said}; continue with the same command and --out {shlex.quote(str(folder))} --resume", 130)
    print_text(result.to_json()) if as_json else render.comparison(result, folder)
    for sentence in result.diverged:
        complain(sentence)
    if not result.results:
        raise typer.Exit(3)


def _names(methods: str | None) -> list[str]:
    from fedmrl.methods import METHODS

    if methods is None:
        return list(METHODS)
    names = split_names(methods) or []
    for name in names:
        METHODS.find(name, "--methods")
    if not names or len(set(names)) < len(names):
        raise UserError(f"--methods is {methods!r}; name different methods, separated by commas")
    return names


def _recipes(recipe: "Recipe", names: Sequence[str], settings: Sequence[str]) -> "dict[str, Recipe]":
    """The recipe for each method; a `--set method.…` applies to the methods that have this field."""
    from fedmrl.config import parse_value
    from fedmrl.methods import METHODS

    changes: dict[str, dict[str, Any]] = {name: {} for name in names}
    for setting in settings:
        key, _, value = setting.partition("=")
        field = key.removeprefix("method.")
        takers = [name for name in names if field in METHODS[name].model_fields]
        if not takers:
            raise UserError(f"--set {setting}: none of {', '.join(names)} has a field {field!r}; see 'fedmrl methods'")
        for name in takers:
            changes[name][field] = parse_value(value)
    return {name: recipe.with_method(name, changes[name]) for name in names}


def bench(
    recipe: RecipeName = "quickstart",
    settings: SettingsOption = None,
    imports: Imports = None,
    ways: Annotated[
        str | None, typer.Option(help="reference, eager, captured, compiled, separated by commas (default: all available)")
    ] = None,
    precisions: Annotated[
        str | None, typer.Option(help="fp32, tf32, bf16, fp64, separated by commas (default: the usual ones of the device)")
    ] = None,
    fused: Annotated[int, typer.Option(help="number of seeds that the last row trains together", min=1)] = 3,
    repeats: Annotated[int, typer.Option(help="number of timed rounds, of which the median counts", min=1)] = 3,
    noise: Annotated[bool, typer.Option("--noise", help="use random images instead of the recipe's data")] = False,
    device: Device = "auto",
    out_file: Annotated[Path | None, typer.Option("--out", help="also write the results to this JSON file")] = None,
) -> None:
    """Measure the speed of a round with each engine."""
    from fedmrl.bench import BENCH_COLUMNS, measure
    from fedmrl.config import load_named
    from fedmrl.progress import working

    named = load_named(recipe, settings or [], imports=imports or [], on_notice=notice)
    check_parent(out_file, "--out")
    try:
        with working(err()) as on_step:
            result = measure(
                named.recipe, named.name, device=device, ways=split_names(ways), precisions=split_names(precisions),
                fused=fused, repeats=repeats, on_noise=noise, on_row=notice, on_step=on_step,
            )  # fmt: skip
    except KeyboardInterrupt:
        end("stopped before every row was measured, so nothing is written; to measure fewer, use --ways or --precisions", 130)
    made = table(f"{named.name}, {result['method']}: {result['clients']} clients a round on {result['device']}", *BENCH_COLUMNS)
    for row in result["rows"]:
        made.add_row(*row["shown"])
    show(made)
    if out_file is not None:
        command = shlex.join(["fedmrl", *(word for word in sys.argv[1:] if word not in ("--out", str(out_file)))])
        rows = [{key: value for key, value in row.items() if key != "shown"} for row in result["rows"]]
        write_whole(out_file, json.dumps({"command": command, **result, "rows": rows}, indent=2) + "\n")

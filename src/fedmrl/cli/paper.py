"""The command that reproduces the paper: reproduce."""

import math
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmrl.cli.options import Device, EngineName, OnRay, check_choice, seeds_of
from fedmrl.cli.terminal import end, err, notice
from fedmrl.errors import InterruptedRun, UserError

if TYPE_CHECKING:
    from fedmrl.reproduce.experiments import RunSpec, Scale

EXPERIMENT_NAMES = (
    "table-hetero",
    "table-homo",
    "curves",
    "clients",
    "costs",
    "d1",
    "ablation",
    "inference",
    "non-iid-class",
    "non-iid-dirichlet",
)


def _complete(incomplete: str) -> list[str]:
    return [name for name in (*EXPERIMENT_NAMES, "all") if name.startswith(incomplete)]


def reproduce(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help=f"{', '.join(EXPERIMENT_NAMES)}, all, or a cell's name", autocompletion=_complete),
    ],
    scale_name: Annotated[
        str, typer.Option("--scale", help="paper, cpu (fewer rounds, hours on two cores), or quick (digits, minutes)")
    ] = "paper",
    quick: Annotated[bool, typer.Option("--quick", help="short for --scale quick")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list the missing runs with their estimated time, without running them")
    ] = False,
    seeds: Annotated[str | None, typer.Option(help="seeds, separated by commas (default: those of the tables)")] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="output folder (default: results/paper, results/paper-cpu or results/quick)")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="repeat measured runs in the subfolder again/, and compare both results")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="number of parallel runs, each in its own process")] = 1,
    ray: OnRay = False,
    minutes: Annotated[float | None, typer.Option(min=0, help="stop after this time; the same command continues")] = None,
    report: Annotated[bool, typer.Option(help="write tables, figures and the page at the end")] = True,
    device: Device = "auto",
    engine: EngineName = "auto",
    at_once: Annotated[int, typer.Option(hidden=True, help="number of such commands that share the device")] = 1,
) -> None:
    """Reproduce the paper's tables and figures.

    Finished runs are skipped, and interrupted ones continue.
    """
    from fedmrl.cli import render
    from fedmrl.federation.launch import pick_device
    from fedmrl.progress import watching
    from fedmrl.report.tables import format_time
    from fedmrl.reproduce.cells import read_cells
    from fedmrl.reproduce.experiments import find
    from fedmrl.reproduce.measure import Estimator, delete_cells, measure_all, missing_runs
    from fedmrl.reproduce.repeatability import repeat_folder

    started, scale = time.monotonic(), _scale(scale_name, quick)
    folder = out_dir or Path("results") / scale.folder
    place = repeat_folder(folder) if again else folder

    def found() -> "list[RunSpec]":
        """The runs of the experiment, which may grow as results come in."""
        named = find(what, scale, read_cells(folder))
        return named if seeds is None else [replace(one, seeds=tuple(seeds_of(seeds, 0))) for one in named]

    pick_device(device)
    if ray and (jobs != 1 or device == "cuda" or engine not in ("auto", "reference")):
        raise UserError(
            "--ray runs each cell on a CPU by the reference engine, and as many as there are CPUs; leave out --jobs, "
            "--device and --engine"
        )
    left = missing_runs(found(), place) or (found() if again else [])
    if dry_run:
        render.dry_run(found(), left, Estimator(folder, device, tell=notice))
        return
    if again:
        delete_cells(left, place)
    once_more = "" if left else "; --again repeats them"
    notice(f"{len(found()) - len(left)} of {len(found())} cells are measured in {place}{once_more}")

    def watch(one: "RunSpec") -> Any:
        return watching(err(), one.label, one.recipe.rounds)

    until, failed = math.inf if minutes is None else started + 60 * minutes, False
    try:
        while left and not failed and time.monotonic() < until:
            stage = min(one.stage for one in left)
            now = [one for one in left if one.stage == stage]
            ends = measure_all(
                now,
                place,
                jobs=jobs,
                scale=scale,
                device=device,
                engine=engine,
                watch=watch,
                until=until,
                at_once=at_once,
                ray=ray,
            )
            with closing(ends):
                of_stage = f" of stage {stage}" if stage else ""
                for ended in ends:
                    notice(f"{ended.name}: {ended.said}; {format_time(ended.seconds_left)} left{of_stage}")
            left = missing_runs(found(), place)
            failed = any(one.stage == stage for one in left)
    except (InterruptedRun, KeyboardInterrupt):
        end("stopped; the same command continues from here", 130)
    time_is_up = time.monotonic() >= until
    if left:
        why = "the time is up" if time_is_up else "some runs failed"
        notice(f"{why}: {len(left)} of {len(found())} cells are left; the same command continues from here")
    if again:
        render.measured_again(found(), folder)
    elif report:
        render.reproduction(folder, scale)
    if left and not time_is_up:
        raise typer.Exit(1)


def _scale(name: str, quick: bool) -> "Scale":
    from fedmrl.reproduce.experiments import SCALES

    check_choice(name, list(SCALES), "--scale")
    if quick and name not in ("paper", "quick"):
        raise UserError(f"--quick means --scale quick, but --scale is {name}; choose one of them")
    return SCALES["quick" if quick else name]

"""The command that measures the paper: reproduce."""

import math
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmrl.cli.options import Device, EngineName, OnRay, seeds_of
from fedmrl.cli.terminal import end, err, notice
from fedmrl.errors import InterruptedRun, UserError

if TYPE_CHECKING:
    from fedmrl.reproduce.experiments import RunSpec, Scale

EXPERIMENTS = (
    "table-hetero",
    "table-homo",
    "curves",
    "clients",
    "costs",
    "non-iid-class",
    "non-iid-dirichlet",
    "d1",
    "ablation",
    "inference",
)


def _complete(incomplete: str) -> list[str]:
    return [name for name in (*EXPERIMENTS, "all") if name.startswith(incomplete)]


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help=f"{', '.join(EXPERIMENTS)}; all; or one cell by its name", autocompletion=_complete
        ),
    ],
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
    ray: OnRay = False,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="stop after so long; the same command then goes on from there")
    ] = None,
    report: Annotated[bool, typer.Option(help="write tables, figures and the page at the end")] = True,
    device: Device = "auto",
    engine: EngineName = "auto",
    at_once: Annotated[int, typer.Option(hidden=True, help="how many such commands share the device")] = 1,
) -> None:
    """Measure the paper's tables and figures.

    What is measured is skipped, and a run that was stopped goes on.
    """
    from fedmrl.cli import render
    from fedmrl.federation.launch import pick_device
    from fedmrl.progress import watching
    from fedmrl.report.tables import time_said
    from fedmrl.reproduce.cells import read_cells
    from fedmrl.reproduce.experiments import find
    from fedmrl.reproduce.measure import Clock, forget, measure_all, missing
    from fedmrl.reproduce.repeatability import folder_of

    started, scale = time.monotonic(), _scale(scale_name, quick)
    folder = out_dir or Path("results") / scale.folder
    place = folder_of(folder) if again else folder

    def found() -> "list[RunSpec]":
        """What is wanted: it may grow by what is measured meanwhile."""
        named = find(what, scale, read_cells(folder))
        return named if seeds is None else [replace(one, seeds=tuple(seeds_of(seeds, 0))) for one in named]

    pick_device(device)
    if ray and (jobs != 1 or device == "cuda" or engine not in ("auto", "reference")):
        raise UserError(
            "--ray runs each cell on a CPU by the reference engine, and as many as there are CPUs; leave out --jobs, "
            "--device and --engine"
        )
    left = missing(found(), place) or (found() if again else [])
    if dry_run:
        render.plan(found(), left, Clock(folder, device, tell=notice))
        return
    if again:
        forget(left, place)
    once_more = "" if left else "; --again measures them once more"
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
                    notice(f"{ended.name}: {ended.said}; {time_said(ended.seconds_left)} left{of_stage}")
            left = missing(found(), place)
            failed = any(one.stage == stage for one in left)
    except (InterruptedRun, KeyboardInterrupt):
        end("stopped; the same command goes on from here", 130)
    time_is_up = time.monotonic() >= until
    if left:
        why = "the time is up" if time_is_up else "some runs failed"
        notice(f"{why}: {len(left)} of {len(found())} cells are left; the same command goes on from here")
    if again:
        render.measured_again(found(), folder)
    elif report:
        render.reproduction(folder, scale)
    if left and not time_is_up:
        raise typer.Exit(1)


def _scale(name: str, quick: bool) -> "Scale":
    from fedmrl.reproduce.experiments import SCALES

    if name not in SCALES:
        raise UserError(f"--scale: there is no {name!r}; choose {', '.join(SCALES)}")
    if quick and name not in ("paper", "quick"):
        raise UserError(f"--quick is --scale quick, and --scale {name} was given; choose one of them")
    return SCALES["quick" if quick else name]

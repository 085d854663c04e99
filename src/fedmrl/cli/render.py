"""How commands print their results on a terminal."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from fedmrl.cli.terminal import notice, out, prose, say, show, table, width_of
from fedmrl.comparison import Comparison
from fedmrl.config import NamedRecipe, Recipe
from fedmrl.data import Dataset
from fedmrl.methods import Method
from fedmrl.models import Model
from fedmrl.report.tables import COMPARISON_COLUMNS, PROTOCOL_NOTES, amount, format_privacy, format_time, mean_percent
from fedmrl.reproduce.experiments import RunSpec, Scale
from fedmrl.reproduce.measure import Estimator
from fedmrl.results import PROTOCOLS, WHOSE, Leaves, RunResult, Target


def one_run(recipe: Recipe, result: RunResult, folder: Path, page: Path | None = None) -> None:
    """Prints a run: its accuracies, inference modes, the cost of targets, and its folder."""
    made = table(f"{recipe.method.title} on {recipe.data.title}", "accuracy", "last round", "best round")
    for whose, says in zip(WHOSE, ("all clients", "participants"), strict=True):
        for view, modes in result.accuracy[whose].items():
            for mode, values in modes.items():
                best = f"{values.best:.1%} (round {values.best_round})"
                made.add_row(f"{says}, {view}, {mode}", f"{values.last:.1%}", best)
    show(made)
    if len(recipe.method.modes) > 1:
        views = result.inference.items()
        made = table("Ways to predict, all clients after the last round", "mode", *(view for view, _ in views))
        for mode in recipe.method.modes:
            made.add_row(mode, *(f"{modes[mode]:.1%}" for _, modes in views))
        show(made)
    for cost in result.targets:
        if (cost.accuracy_of, cost.view) == ("all", result.view):
            prose(_cost(cost))
    for sentence in format_privacy(result):
        prose(sentence)
    for protocol, says in PROTOCOLS.items():
        prose(f"{protocol}: {mean_percent([result.headline(protocol)])}, mean over {says}.")
    say(f"Files in {folder}: summary.json, clients.csv, rounds.jsonl, config.toml, split.json")
    say(_models_hint([folder]))
    say(f"Page: {page}   (open it in a browser)" if page else _page_hint(folder))


def leaves(named: NamedRecipe, sheet: Leaves) -> None:
    """What leaves a client in a round, and what stays."""
    for direction, does, tensors, most in (
        ("up", "sends", sheet.up, sheet.up_bytes),
        ("down", "receives", sheet.down, sheet.down_bytes),
    ):
        if not tensors:
            prose(f"A client {does} no tensor.")
            continue
        made = table(
            f"What a client of {named.name} {does} in a round ({direction})",
            "tensor",
            "shape",
            "type",
            "at most",
            wraps="tensor",
        )
        for tensor in tensors:
            shape = " × ".join(map(str, tensor.shape)) or "one number"
            made.add_row(tensor.name, shape, tensor.dtype, amount(tensor.bytes, "B"))
        show(made)
        prose(f"A client {does} at most {most:,} bytes of tensors in a round.")
    prose(f"With each reply go a loss, counts of samples and FLOPs. What stays: {', '.join(sheet.stays)}.")


def _cost(cost: Target) -> str:
    if cost.parameters is None or cost.flops is None:
        return f"{cost.target:.0%} over all clients was not reached."
    spent = f"{amount(cost.parameters, '')} parameters sent and received, and {amount(cost.flops, 'FLOP')}"
    return f"{cost.target:.0%} over all clients was reached by round {cost.rounds}: {spent} a client."


def _page_hint(folder: Path) -> str:
    return f"To see it as a page: fedmrl report {shlex.quote(str(folder))}"


def _models_hint(folders: Sequence[Path]) -> str:
    """What runs' final models take on disk, and how to use one."""
    size = sum(path.stat().st_size for folder in folders for path in folder.glob("checkpoint/*"))
    if not size:
        return "Final models were not kept."
    where = shlex.quote(str(folders[0]))
    return f"Final models: {amount(size, 'B')}; to use one: fedmrl export {where} --client 0 --to model.pt2"


def several_seeds(recipe: Recipe, runs: Sequence[RunResult], folder: Path) -> None:
    """Prints the accuracy of runs with different seeds, with mean and standard deviation."""
    made = table(f"{recipe.method.title} on {recipe.data.title}: accuracy", "seed", *PROTOCOLS)
    values = {one.seed: [one.headline(protocol) for protocol in PROTOCOLS] for one in runs}
    for seed, own in values.items():
        made.add_row(str(seed), *(mean_percent([value]) for value in own))
    if len(runs) > 1:
        made.add_row("mean", *map(mean_percent, zip(*values.values(), strict=True)))
    show(made)
    for note in PROTOCOL_NOTES:
        prose(note)
    for one in runs:
        for sentence in format_privacy(one):
            prose(f"Seed {one.seed}: {sentence}")
    say(f"Each run is in {folder}/seed-*/   {_page_hint(folder)}")
    say(_models_hint([run.folder for run in runs if run.folder]))


def comparison(result: Comparison, folder: Path) -> None:
    """Prints the comparison of several methods."""
    title = f"{result.title}: the same data, models and training for every method"
    cut = COMPARISON_COLUMNS.index("sent and received")
    accuracy, costs = range(cut), (0, *range(cut, len(COMPARISON_COLUMNS)))
    whole = _of_columns(title, range(len(COMPARISON_COLUMNS)), result.rows)
    if width_of(whole) <= out().width:
        show(whole)
    else:  # a narrow terminal gets two tables
        show(_of_columns(title, accuracy, result.rows))
        show(_of_columns("Cost", costs, result.rows))
    for note in result.notes:
        prose(note)
    for name, titled in result.titles.items():
        for one in result[name]:
            for sentence in format_privacy(one) if isinstance(one, RunResult) else ():
                prose(f"{titled}, seed {one.seed}: {sentence}")
    if result.results:
        say(f"Page: {folder / 'report.html'}   (open it in a browser)")
        say(f"Figure: {folder / 'accuracy.png'}   Table: {folder / 'table.md'}   Each run: {folder}/*/")
        say(_models_hint([run.folder for run in result.results if run.folder]))


def _of_columns(title: str, places: Iterable[int], rows: Sequence[Sequence[str]]) -> Table:
    places = list(places)
    made = table(title, *(COMPARISON_COLUMNS[place] for place in places))
    for row in rows:
        made.add_row(*(row[place] for place in places))
    return made


def split(named: NamedRecipe, data: Dataset, counts: Sequence[Sequence[NDArray[np.integer[Any]]]]) -> None:
    """Prints each client's samples by class; `counts` holds training and test counts."""
    title, by_class = f"{named.name}: {data.name} on {len(counts)} clients", "classes (training samples)"
    made = table(title, "client", "model", "training", "test", by_class, wraps=by_class)
    models_of = named.recipe.models.of_clients(len(counts))
    for client, (train, test) in enumerate(counts):
        has = ", ".join(f"{data.classes[c]} ({n})" for c, n in enumerate(train) if n)
        made.add_row(str(client), models_of[client].label, str(train.sum()), str(test.sum()), has)
    show(made)


def methods(found: Mapping[str, type[Method]]) -> None:
    """Prints each method with its hyperparameters."""
    from rich.text import Text

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(style="dim")
    for name, method in found.items():
        made.add_row(Text(name, style="bold"), Text(method.summary, style="not dim"))
        made.add_row("    predicts with", ", ".join(method().modes))
        for field, info in method.model_fields.items():
            made.add_row(f"    method.{field} = {_value(info.default)}", info.description or "")
    show(made)


def models(title: str, specs: Mapping[str, Model], sizes: Mapping[str, int | None]) -> None:
    """Prints each model with its widths and size."""
    widths = ("conv1", "conv2", "fc1", "fc2")
    made = table(title, "model", *widths, "parameters", "MiB")
    for name, size in sizes.items():
        shown = (str(getattr(specs[name], width, "")) for width in widths)
        made.add_row(name, *shown, *(("–", "–") if size is None else (f"{size:,}", f"{size * 4 / 2**20:.2f}")))
    show(made)
    say("fc2 is the width of the representation. A recipe can set other widths:")
    say("local = [{conv1 = 16, conv2 = 32, fc1 = 400, fc2 = 200}]")


def keys(listed: Sequence[tuple[str, Any, str]]) -> None:
    """Prints each key of a recipe with its default and description."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(style="dim")
    for key, default, says in listed:
        plain = default.model_dump() if hasattr(default, "model_dump") else default
        made.add_row(f"{key} = {_value(plain)}", says)
    made.add_row("method.name", "the method; 'fedmrl methods' lists its other keys")
    show(made)


def _value(value: Any) -> str:
    return "(not set)" if value is None else json.dumps(value)


def dry_run(found: Sequence[RunSpec], left: Sequence[RunSpec], clock: Estimator) -> None:
    """Prints the runs of a reproduction with their estimated durations."""
    made = table(f"On {clock.device}", "cell", "seeds", "left", "estimate")
    total, sources_of = 0.0, set[str]()
    for one in found:
        rest = next((other for other in left if other.name == one.name and {*other.seeds} <= {*one.seeds}), None)
        estimate = clock.estimate(rest) if rest else None
        total += estimate.seconds if estimate else 0.0
        takes = format_time(estimate.seconds) if estimate else ""
        made.add_row(one.name, ", ".join(map(str, one.seeds)), str(len(rest.seeds) if rest else 0), takes)
        sources_of |= {estimate.source} if estimate else set()
    show(made)
    runs = sum(len(one.seeds) for one in left)
    prose(f"{runs} run{'' if runs == 1 else 's'} left, about {format_time(total)} if run one after another.")
    if sources_of:
        prose(f"Estimated by {', or '.join(sorted(sources_of))}.")


def measured_again(found: Sequence[RunSpec], folder: Path) -> None:
    """Prints repeated measurements beside the stored ones."""
    from fedmrl.reproduce.repeatability import REPEATABILITY_COLUMNS, repeat_folder, repeatability_rows

    made = table("Repeated runs, accuracy in percent", *REPEATABILITY_COLUMNS)
    for row in repeatability_rows(found, folder):
        made.add_row(*row)
    show(made)
    say(f"Each run: {repeat_folder(folder) / 'cells'}")


def reproduction(folder: Path, scale: Scale) -> None:
    """Writes tables, figures and the page of the measured cells, and prints their paths."""
    from fedmrl.reproduce.cells import read_cells
    from fedmrl.reproduce.figures import write_figures
    from fedmrl.reproduce.index import write_index
    from fedmrl.reproduce.tables import write_tables

    cells = read_cells(folder)
    if not cells:
        return
    for cell in cells:
        if cell.diverged:
            notice(f"{cell.setting}/{cell.variant}, seed {cell.seed}: {cell.diverged['reason']}")
    tables, figures = write_tables(cells, scale, folder), write_figures(cells, scale, folder)
    page = write_index(cells, scale, folder)
    places = {"Page": page, "Tables": tables and folder / "tables", "Figures": figures and folder / "figures"}
    for what, path in {**places, "Each run": folder / "cells"}.items():
        if path:
            say(f"{what}: {path}")

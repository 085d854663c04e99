"""The search that comes before the tables: the same number of points for every method, one seed, fewer rounds."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tomli_w

from fedmrl.errors import UserError
from fedmrl.methods import METHODS
from fedmrl.report.tables import markdown
from fedmrl.reproduce.cells import Cell, by_variant
from fedmrl.reproduce.experiments import EXPERIMENTS, METHOD_ORDER, Scale, Wanted, recipe_of, wanted

ROUNDS = 200
COLUMNS = ("dataset", "method", "point", "accuracy", "")
NO_AUGMENTATION = {"training.augment.flip": False, "training.augment.crop": 0, "training.augment.erase": 0.0}
COMMON: Mapping[str, Mapping[str, Any]] = {
    "authors": {},
    "batch-128": {"training.batch_size": 128},
    "no-augmentation": NO_AUGMENTATION,
    "plain-sgd": {"training.momentum": 0.0, "training.weight_decay": 0.0},
}
"""What is tried with every method; each changes one thing about the optimiser and augmentation of the authors' code."""
OWN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "standalone": {"batch-256": {"training.batch_size": 256}, "no-decay": {"training.weight_decay": 0.0}},
    "lg-fedavg": {"batch-256": {"training.batch_size": 256}, "no-decay": {"training.weight_decay": 0.0}},
    "fd": {"gamma-0.1": {"method.gamma": 0.1}, "gamma-0.5": {"method.gamma": 0.5}},
    "fedproto": {"lambda-0.1": {"method.prototype_weight": 0.1}, "lambda-10": {"method.prototype_weight": 10.0}},
    "fml": {
        "labels-0.8": {"method.alpha": 0.8, "method.beta": 0.8},
        "labels-0.2": {"method.alpha": 0.2, "method.beta": 0.2},
    },
    "fedkd": {
        "energy-0.8-0.9": {"method.energy_start": 0.8, "method.energy_end": 0.9},
        "energy-0.98-0.99": {"method.energy_start": 0.98, "method.energy_end": 0.99},
    },
    "fedapen": {"adapt-0.1": {"method.adaptability": 0.1}, "rate-0.01": {"method.balance_lr": 0.01}},
    "fedmrl": {"d1-250": {"method.d1": 250}, "d1-500": {"method.d1": 500}},
}
"""What is tried with one method alone: its own weight, or where it has none, two more of the optimiser."""


def points(method: str) -> dict[str, dict[str, Any]]:
    """What is tried with a method, by name."""
    return {name: dict(changes) for name, changes in {**COMMON, **OWN[method]}.items()}


def wanted_search(scale: Scale) -> list[Wanted]:
    """All points of the search, in the federation that figures look into. They start from the authors' settings."""
    if scale.name != "paper":
        raise UserError("the search is made at the paper's scale only; leave out --quick")
    return [
        Wanted(f"{dataset}-{scale.main}-search", f"{method}+{point}", recipe, (0,))
        for dataset in scale.datasets
        for method in METHOD_ORDER
        for point, changes in points(method).items()
        for recipe in [recipe_of(f"{dataset}-{scale.main}", method, scale, searched={"rounds": ROUNDS, **changes})]
    ]


def find(what: str, scale: Scale) -> list[Wanted]:
    """The runs of an experiment, of all of them, of the search; or the one run of that name."""
    if what == "search":
        return wanted_search(scale)
    if what == "all" or what in EXPERIMENTS:
        return wanted(what, scale)
    everything = [*wanted("all", scale), *(wanted_search(scale) if scale.name == "paper" else [])]
    if named := [one for one in everything if one.name == what]:
        return named
    near = difflib.get_close_matches(what, [*EXPERIMENTS, "all", "search", *(one.name for one in everything)], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(
        f"there is no {what!r} to reproduce; {hint}choose {', '.join(EXPERIMENTS)}, all, search, or a cell as "
        "'fedmrl reproduce all --dry-run' lists them"
    )


def results(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """A row for each point by dataset and method: all clients, last round, mean over seeds; the best is marked."""
    found, best = by_variant(cells), best_points(cells)
    rows: list[tuple[str, ...]] = []
    for dataset, method in dict.fromkeys((cell.dataset, cell.method) for cell in cells):
        setting = next(cell.setting for cell in cells if cell.dataset == dataset)
        for point in points(method):
            own = found.get((setting, f"{method}+{point}"), [])
            accuracy = _fair(own)
            said = "diverged" if accuracy is None else f"{100 * accuracy:.2f} %"
            mark = "best" if best.get((dataset, method)) == point else ""
            rows.append((dataset, METHODS[method].title, point, said if own else "not measured", mark))
    return rows


def best_points(cells: Iterable[Cell]) -> dict[tuple[str, str], str]:
    """The best point of each dataset and method; the first of equals."""
    found: dict[tuple[str, str], tuple[float, str]] = {}
    for (_, variant), own in by_variant(cells).items():
        key, accuracy = (own[0].dataset, own[0].method), _fair(own)
        if accuracy is not None and (key not in found or accuracy > found[key][0]):
            found[key] = accuracy, variant.partition("+")[2]
    return {key: point for key, (_, point) in found.items()}


def _fair(cells: Iterable[Cell]) -> float | None:
    """The mean over seeds; None if one diverged."""
    accuracies = [cell.measured("fair") for cell in cells]
    finished = [accuracy for accuracy in accuracies if accuracy is not None]
    return float(np.mean(finished)) if finished and len(finished) == len(accuracies) else None


def lines_of_chosen(cells: Sequence[Cell]) -> str:
    """The best points as `chosen.toml` has them, of methods of which every point is measured."""
    tried = {(cell.dataset, cell.method, cell.variant) for cell in cells}
    tables: dict[str, dict[str, Any]] = {}
    for (dataset, method), point in best_points(cells).items():
        if all((dataset, method, f"{method}+{name}") in tried for name in points(method)):
            tables.setdefault(dataset, {})[method] = points(method)[point]
    return tomli_w.dumps(tables)


def page(cells: Sequence[Cell]) -> str:
    """The search in Markdown."""
    rows = [(*row[:3], f"**{row[3]}**" if row[4] else row[3]) for row in results(cells)]
    says = f"All clients after {ROUNDS} rounds, with what the server has last; the best point of a method is bold."
    then = "For `chosen.toml`, of methods of which every point is measured:"
    return f"# The search\n\n{says}\n\n{markdown(COLUMNS[:4], rows)}\n{then}\n\n```toml\n{lines_of_chosen(cells)}```\n"

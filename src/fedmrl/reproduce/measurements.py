"""Measurements: the cells of a variant over its seeds, and the titles that tables and figures use."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np

from fedmrl.methods import METHODS
from fedmrl.report.tables import format_seeds
from fedmrl.reproduce.cells import Cell, by_variant
from fedmrl.reproduce.experiments import EXPERIMENTS, METHOD_ORDER, RunSpec, Scale, dim_variant, paper_results, run_specs
from fedmrl.results import PROTOCOLS, Protocol

T = TypeVar("T")
State = Literal["finished", "failed", "missing", "incomparable"]
Kind = Literal["heterogeneous", "homogeneous"]

DATASET_TITLES: Mapping[str, str] = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "digits": "Digits"}
PROTOCOL_TITLES: Mapping[Protocol, str] = {protocol: f"Protocol {protocol}: {says}" for protocol, says in PROTOCOLS.items()}
TITLES: Mapping[str, str] = {method: METHODS[method].title for method in METHOD_ORDER}
COSTS: Mapping[str, str] = {"rounds": "rounds", "parameters": "parameters", "flops": "FLOPs"}
"""The kinds of cost until a target, with their titles."""


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with the sample standard deviation; None for a single seed."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The mean and spread of at least one number.

        >>> Spread.of([1.0, 3.0]), Spread.of([2.0])
        (Spread(mean=2.0, deviation=1.4142135623730951), Spread(mean=2.0, deviation=None))
        """
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


@dataclass(frozen=True)
class Cost:
    """The cost of a target: the values of the seeds that reached it, and the number of all seeds."""

    values: tuple[float, ...]
    seeds: int

    @property
    def everywhere(self) -> bool:
        """Whether every seed reached it."""
        return len(self.values) == self.seeds

    @property
    def mean(self) -> float | None:
        """The mean over all seeds; None if a seed missed the target, since the mean over the others would look too good."""
        return float(np.mean(self.values)) if self.everywhere else None


@dataclass(frozen=True)
class Measurement:
    """The cells of one variant in one setting, one for each seed; empty if not measured."""

    cells: tuple[Cell, ...] = ()
    incomparable: bool = False
    """Whether it was measured, but has no seed in common with the others."""

    @property
    def state(self) -> State:
        """The state; a variant has failed if any seed failed, since the mean over the others would be too good."""
        if self.incomparable:
            return "incomparable"
        if not self.cells:
            return "missing"
        return "finished" if all(cell.converged for cell in self.cells) else "failed"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The measured seeds."""
        return tuple(cell.seed for cell in self.cells)

    def on(self, seeds: Container[int]) -> "Measurement":
        """The measurement restricted to these seeds."""
        kept = tuple(cell for cell in self.cells if cell.seed in seeds)
        return Measurement(kept, incomparable=not kept)

    def accuracies(self, protocol: Protocol) -> list[float]:
        """The accuracy (0 to 1) of each seed that has one."""
        found = (cell.measured(protocol) for cell in self.cells)
        return [accuracy for accuracy in found if accuracy is not None]

    def percent(self, protocol: Protocol) -> Spread | None:
        """The accuracy in percent, if all seeds converged."""
        if self.state != "finished":
            return None
        return Spread.of([100 * accuracy for accuracy in self.accuracies(protocol)])

    def mean(self, protocol: Protocol) -> float | None:
        """The mean accuracy in percent, if all seeds converged."""
        spread = self.percent(protocol)
        return spread.mean if spread else None

    def cost(self, protocol: Protocol, target: float, what: str) -> Cost | None:
        """Rounds, parameters or FLOPs per client to a target, if all seeds converged."""
        if self.state != "finished":
            return None
        entries = [cell.cost(protocol, target) for cell in self.cells]
        key = f"paper_{what}" if protocol == "paper" and what != "rounds" else what
        return Cost(tuple(float(getattr(entry, key)) for entry in entries if entry.reached), len(entries))

    def how_failed(self) -> str:
        """Such as `in round 12`, `no better than chance`, or `in round 12 with 1 of 3 seeds`."""
        failed = [cell for cell in self.cells if not cell.converged]
        first = min((cell.diverged["round"] for cell in failed if cell.diverged), default=None)
        said = [
            "no better than chance" if first is None else f"in round {first}",
            f"with {len(failed)} of {len(self.cells)} seeds",
        ]
        return " ".join(said if len(self.cells) > 1 else said[:1])


def mark_incomparable(found: Mapping[T, Measurement]) -> dict[T, Measurement]:
    """Marks measurements without the most common seed as incomparable, so that all others share at least that one.

    Failed measurements stay as they are.
    """
    votes = Counter(seed for measurement in found.values() if measurement.state == "finished" for seed in measurement.seeds)
    if not votes:
        return dict(found)
    most = min(votes, key=lambda seed: (-votes[seed], seed))
    lacks = {key for key, measurement in found.items() if measurement.state == "finished" and most not in measurement.seeds}
    return {key: Measurement(incomparable=True) if key in lacks else measurement for key, measurement in found.items()}


def on_shared_seeds(one: Measurement, other: Measurement) -> tuple[Measurement, Measurement]:
    """Two measurements over the seeds that both have, since an easier seed would favour one of them."""
    common = set(one.seeds) & set(other.seeds)
    return one.on(common), other.on(common)


def ahead_of_each(
    found: Mapping[T, Measurement],
    value: Callable[[Measurement], float | None],
    *,
    shown: Callable[[float], str],
    low: bool = False,
) -> dict[T, int | None]:
    """The number of others ahead of each, compared in pairs over common seeds after rounding; None without a value."""

    def is_ahead(one: Measurement, other: Measurement) -> bool:
        a, b = map(value, on_shared_seeds(one, other))
        return a is not None and b is not None and shown(a) != shown(b) and (a < b) == low

    known = {key for key, measurement in found.items() if value(measurement) is not None}
    return {
        key: sum(is_ahead(found[other], measurement) for other in known if other != key) if key in known else None
        for key, measurement in found.items()
    }


def over_common_seeds(found: Mapping[T, Measurement]) -> dict[T, Measurement]:
    """A line's points over the seeds that all have in common; points without the most common seed become incomparable."""
    rest = mark_incomparable(found)
    finished = {key: set(measurement.seeds) for key, measurement in rest.items() if measurement.state == "finished"}
    if not finished:
        return rest
    common = set.intersection(*finished.values())
    return {key: measurement.on(common) if key in finished else measurement for key, measurement in rest.items()}


def fewer_seeds(found: Mapping[T, Measurement]) -> dict[T, str]:
    """The finished measurements that lack a seed others have, with their seeds as text."""
    every = finished_seeds(found.values())
    fewer = [key for key, measurement in found.items() if measurement.state == "finished" and set(measurement.seeds) != every]
    return {key: format_seeds(found[key].seeds) for key in fewer}


def finished_seeds(found: Iterable[Measurement]) -> set[int]:
    """All seeds of the finished measurements."""
    return {seed for measurement in found if measurement.state == "finished" for seed in measurement.seeds}


@dataclass(frozen=True)
class Column:
    """A dataset and a federation: a column of the paper's tables."""

    dataset: str
    federation: str
    setting: str
    federation_title: str
    """Such as `N=100, C=10%`."""

    @property
    def dataset_title(self) -> str:
        """Such as `CIFAR-10`."""
        return dataset_title(self.dataset)

    @property
    def short(self) -> str:
        """Such as `CIFAR-10 N=100`."""
        return f"{self.dataset_title} {self.federation_title.partition(',')[0]}"

    @property
    def title(self) -> str:
        """Such as `CIFAR-10, N=100, C=10%`."""
        return f"{self.dataset_title}, {self.federation_title}"


def dataset_title(dataset: str) -> str:
    """The dataset's title."""
    return DATASET_TITLES.get(dataset, dataset)


def _titles(methods: Iterable[str]) -> str:
    return " and ".join(TITLES[method] for method in methods) or "none"


class Measurements:
    """The cells of a reproduction, organised for tables and figures.

    Cells whose recipe differs from this version's are not comparable; they are left out and listed in `left_out`.
    """

    def __init__(self, cells: Sequence[Cell], scale: Scale) -> None:
        self.scale = scale
        self._specs = {what: run_specs(what, scale, cells) for what in (*EXPERIMENTS, "all")}
        recipes = {(one.setting, one.variant): one.recipe for one in self.specs("all")}
        kept = [cell for cell in cells if (today := recipes.get(cell.key[:2])) is None or cell.matches(today)]
        self.left_out = {cell.key for cell in cells} - {cell.key for cell in kept}
        self._cells = {
            key: Measurement(tuple(sorted(found, key=lambda cell: cell.seed))) for key, found in by_variant(kept).items()
        }

    def specs(self, what: str) -> list[RunSpec]:
        """The runs of an experiment, or of `all`."""
        return self._specs[what]

    def runs(self, what: str) -> list[Cell | None]:
        """The cell of each run of an experiment; None if not measured."""
        return [
            next((cell for cell in self.of(one.setting, one.variant).cells if cell.seed == seed), None)
            for one in self.specs(what)
            for seed in one.seeds
        ]

    def is_whole(self, what: str) -> bool:
        """Whether every run of an experiment is measured."""
        return all(self.runs(what))

    def left_out_note(self, settings: Iterable[str]) -> list[str]:
        """A sentence on the cells of these settings that are left out, if any."""
        here, names = set(settings), dict[str, list[int]]()
        for setting, variant, seed in sorted(key for key in self.left_out if key[0] in here):
            names.setdefault(f"{setting}/{variant}", []).append(seed)
        said = ", ".join(f"{name} ({format_seeds(seeds)})" for name, seeds in names.items())
        return [f"Left out, since their recipe differs from this version's: {said}."] if names else []

    def of(self, setting: str, variant: str) -> Measurement:
        """The measurement of a variant in a setting, which may be empty."""
        return self._cells.get((setting, variant), Measurement())

    def methods(self, setting: str) -> dict[str, Measurement]:
        """The measurement of each method."""
        return {method: self.of(setting, method) for method in METHOD_ORDER}

    def compared(self, setting: str) -> dict[str, Measurement]:
        """The measurement of each method, with incomparable ones marked."""
        return mark_incomparable(self.methods(setting))

    def first(self, setting: str, protocol: Protocol) -> list[str]:
        """The methods that no other method is ahead of."""
        ranks = ahead_of_each(self.compared(setting), lambda measurement: measurement.mean(protocol), shown="{:.2f}".format)
        return [method for method, ahead in ranks.items() if ahead == 0]

    def disagreements(self, columns: Iterable["Column"]) -> list[str]:
        """A sentence on the columns in which `fair` and `own` disagree about the first place, if any."""
        said = []
        for column in columns:
            fair, own = (self.first(column.setting, protocol) for protocol in ("fair", "own"))
            if set(fair) != set(own):
                said.append(f"{column.short} ({_titles(fair)} under fair, {_titles(own)} under own)")
        return [f"The protocols fair and own disagree about the first place: {'; '.join(said)}."] if said else []

    def targets(self, dataset: str) -> list[float]:
        """The target accuracies: the paper's and, if few methods reach it, the highest multiple of 5% that most methods reach.

        The protocol `fair` decides the second target for all protocols.
        """
        papers = self.scale.targets[dataset]
        found = [
            measurement for measurement in self.methods(self.main(dataset).setting).values() if measurement.state == "finished"
        ]

        def most_reach(target: float) -> bool:
            costs = [measurement.cost("fair", target, "rounds") for measurement in found]
            return 2 * sum(cost is not None and cost.everywhere for cost in costs) > len(found)

        lower = (share / 100 for share in range(95, 0, -5) if papers / 2 <= share / 100 < papers)
        common = None if most_reach(papers) else next((target for target in lower if most_reach(target)), None)
        return [papers] if common is None or len(found) < 2 else [papers, common]

    def of_dim(self, setting: str, d1: int, mrl: bool = True) -> Measurement:
        """FedMRL with this d1; the plain run if it has the same d1 and there is no separate one."""
        found = self.of(setting, dim_variant(d1, mrl))
        if found.cells or not mrl:
            return found
        plain = self.of(setting, "fedmrl")
        same = all(cell.recipe["method"].get("d1") == d1 and cell.recipe["method"].get("mrl", True) for cell in plain.cells)
        return plain if same else found

    def columns(self, kind: Kind = "heterogeneous") -> list[Column]:
        """The columns of a table, ordered by dataset and federation."""
        suffix = "-homogeneous" if kind == "homogeneous" else ""
        return [
            Column(dataset, federation, f"{dataset}-{federation}{suffix}", self._titles[federation])
            for dataset in self.scale.datasets
            for federation in self.scale.federations
        ]

    def main(self, dataset: str) -> Column:
        """The column of the main federation."""
        return next(c for c in self.columns() if (c.dataset, c.federation) == (dataset, self.scale.main))

    @cached_property
    def _titles(self) -> dict[str, str]:
        """The titles of the federations; the participation is read from any of their cells, and left out without one."""
        said = {}
        for federation in self.scale.federations:
            recipes = (o.cells[0].recipe for (setting, _), o in self._cells.items() if federation in setting.split("-")[1:2])
            share = next((r["participation"] for r in recipes if isinstance(r["participation"], float | int)), None)
            said[federation] = f"N={federation.removeprefix('n')}" + ("" if share is None else f", C={100 * share:g}%")
        return said

    def paper(self, kind: Kind, column: Column, method: str) -> float | None:
        """The accuracy in the paper, in percent; None if the method failed to converge there."""
        values = paper_results()[kind][column.dataset][method]
        value: float | None = values[paper_results()["settings"].index(column.federation)]
        return value

    @property
    def has_paper(self) -> bool:
        """Whether the paper has results in these settings."""
        return self.scale.has_paper

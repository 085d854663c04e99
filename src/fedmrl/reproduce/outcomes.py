"""Outcomes: what the seeds of a variant came to, and the names by which tables and figures call what was measured."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np

from fedmrl.methods import METHODS
from fedmrl.report.tables import seeds_said
from fedmrl.reproduce.cells import Cell, by_variant
from fedmrl.reproduce.experiments import EXPERIMENTS, METHOD_ORDER, RunSpec, Scale, dim_variant, printed, run_specs
from fedmrl.results import PROTOCOLS, Protocol

T = TypeVar("T")
State = Literal["finished", "failed", "missing", "apart"]
Kind = Literal["heterogeneous", "homogeneous"]

DATASET_TITLES: Mapping[str, str] = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "digits": "Digits"}
PROTOCOL_TITLES: Mapping[Protocol, str] = {
    "fair": f"Fair protocol ({PROTOCOLS['fair']})",
    "own": f"Own copies ({PROTOCOLS['own']})",
    "paper": f"The paper's protocol ({PROTOCOLS['paper']})",
}
TITLES: Mapping[str, str] = {method: METHODS[method].title for method in METHOD_ORDER}
COSTS: Mapping[str, str] = {"rounds": "rounds", "parameters": "parameters", "flops": "FLOPs"}
"""What is counted until a target is reached, and what it is called."""


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with the sample standard deviation, which one seed does not have."""

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
    """What reaching the target took: one number for each seed that did, out of all seeds."""

    values: tuple[float, ...]
    seeds: int

    @property
    def everywhere(self) -> bool:
        """Whether every seed reached it."""
        return len(self.values) == self.seeds

    @property
    def mean(self) -> float | None:
        """Over all seeds, if every one reached it: those that did alone would flatter it."""
        return float(np.mean(self.values)) if self.everywhere else None


@dataclass(frozen=True)
class Outcome:
    """The cells of one variant in one setting, a cell for each seed; none if it was not measured."""

    cells: tuple[Cell, ...] = ()
    apart: bool = False
    """Whether it was measured, but with no seed of those that it is compared with."""

    @property
    def state(self) -> State:
        """A variant that failed to converge with any seed has failed: its other seeds alone would flatter it."""
        if self.apart:
            return "apart"
        if not self.cells:
            return "missing"
        return "finished" if all(cell.converged for cell in self.cells) else "failed"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds it was measured with."""
        return tuple(cell.seed for cell in self.cells)

    def on(self, seeds: Container[int]) -> "Outcome":
        """The same with these seeds alone."""
        kept = tuple(cell for cell in self.cells if cell.seed in seeds)
        return Outcome(kept, apart=not kept)

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


def with_common_seed(found: Mapping[T, Outcome]) -> dict[T, Outcome]:
    """Sets apart who lacks the seed that most have, so that any two of the others can be compared.

    One that failed stays as it is, as it has nothing to compare.
    """
    votes = Counter(seed for outcome in found.values() if outcome.state == "finished" for seed in outcome.seeds)
    if not votes:
        return dict(found)
    most = min(votes, key=lambda seed: (-votes[seed], seed))
    lacks = {key for key, outcome in found.items() if outcome.state == "finished" and most not in outcome.seeds}
    return {key: Outcome(apart=True) if key in lacks else outcome for key, outcome in found.items()}


def in_pair(one: Outcome, other: Outcome) -> tuple[Outcome, Outcome]:
    """Two outcomes over the seeds that both have: else one may be ahead by an easier seed."""
    common = set(one.seeds) & set(other.seeds)
    return one.on(common), other.on(common)


def ahead_of_each(
    found: Mapping[T, Outcome], value: Callable[[Outcome], float | None], *, shown: Callable[[float], str], low: bool = False
) -> dict[T, int | None]:
    """How many others are ahead of each, pair by pair over common seeds, by what is shown; None for who has no value."""

    def is_ahead(one: Outcome, other: Outcome) -> bool:
        a, b = map(value, in_pair(one, other))
        return a is not None and b is not None and shown(a) != shown(b) and (a < b) == low

    known = {key for key, outcome in found.items() if value(outcome) is not None}
    return {
        key: sum(is_ahead(found[other], outcome) for other in known if other != key) if key in known else None
        for key, outcome in found.items()
    }


def comparable(found: Mapping[T, Outcome]) -> dict[T, Outcome]:
    """A line's points, over the seeds that all of them have in common; who lacks the seed that most have is `apart`."""
    rest = with_common_seed(found)
    finished = {key: set(outcome.seeds) for key, outcome in rest.items() if outcome.state == "finished"}
    if not finished:
        return rest
    common = set.intersection(*finished.values())
    return {key: outcome.on(common) if key in finished else outcome for key, outcome in rest.items()}


def fewer_seeds(found: Mapping[T, Outcome]) -> dict[T, str]:
    """Whose mean lacks a seed that another's has, and which seeds it is over, such as `seed 0`."""
    every = finished_seeds(found.values())
    fewer = [key for key, outcome in found.items() if outcome.state == "finished" and set(outcome.seeds) != every]
    return {key: seeds_said(found[key].seeds) for key in fewer}


def finished_seeds(found: Iterable[Outcome]) -> set[int]:
    """The seeds of all that finished."""
    return {seed for outcome in found if outcome.state == "finished" for seed in outcome.seeds}


@dataclass(frozen=True)
class Column:
    """A dataset and a federation, as the paper's tables have columns."""

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
    """The name by which people know a dataset."""
    return DATASET_TITLES.get(dataset, dataset)


def _titles(methods: Iterable[str]) -> str:
    return " and ".join(TITLES[method] for method in methods) or "nobody"


class Outcomes:
    """The cells of a reproduction, looked up by what a table or figure asks for.

    A cell that was measured with another recipe than this version has for it would be compared with what it cannot be
    compared with, so it is left out, and said to be.
    """

    def __init__(self, cells: Sequence[Cell], scale: Scale) -> None:
        self.scale = scale
        self._specs = {what: run_specs(what, scale, cells) for what in (*EXPERIMENTS, "all")}
        recipes = {(one.setting, one.variant): one.recipe for one in self.specs("all")}
        kept = [cell for cell in cells if (today := recipes.get(cell.key[:2])) is None or cell.is_of(today)]
        self.left_out = {cell.key for cell in cells} - {cell.key for cell in kept}
        self._cells = {
            key: Outcome(tuple(sorted(found, key=lambda cell: cell.seed))) for key, found in by_variant(kept).items()
        }

    def specs(self, what: str) -> list[RunSpec]:
        """The runs of an experiment, or of all of them."""
        return self._specs[what]

    def runs(self, what: str) -> list[Cell | None]:
        """A cell for each run of an experiment; None where it is not measured."""
        return [
            next((cell for cell in self.of(one.setting, one.variant).cells if cell.seed == seed), None)
            for one in self.specs(what)
            for seed in one.seeds
        ]

    def is_whole(self, what: str) -> bool:
        """Whether an experiment is measured, with every seed."""
        return all(self.runs(what))

    def left_out_said(self, settings: Iterable[str]) -> list[str]:
        """A sentence that names what is left out of these settings, if anything."""
        here, names = set(settings), dict[str, list[int]]()
        for setting, variant, seed in sorted(key for key in self.left_out if key[0] in here):
            names.setdefault(f"{setting}/{variant}", []).append(seed)
        said = ", ".join(f"{name} ({seeds_said(seeds)})" for name, seeds in names.items())
        return [f"Left out, as measured with another recipe than this version has: {said}."] if names else []

    def of(self, setting: str, variant: str) -> Outcome:
        """What came out, if anything."""
        return self._cells.get((setting, variant), Outcome())

    def methods(self, setting: str) -> dict[str, Outcome]:
        """What came out of each method."""
        return {method: self.of(setting, method) for method in METHOD_ORDER}

    def compared(self, setting: str) -> dict[str, Outcome]:
        """Of each method what can be compared with the others."""
        return with_common_seed(self.methods(setting))

    def first(self, setting: str, protocol: Protocol) -> list[str]:
        """The methods that none is ahead of."""
        ranks = ahead_of_each(self.compared(setting), lambda outcome: outcome.mean(protocol), shown="{:.2f}".format)
        return [method for method, ahead in ranks.items() if ahead == 0]

    def disagreements(self, columns: Iterable["Column"]) -> list[str]:
        """A sentence that names the columns in which `fair` and `own` disagree about who is first, if there are any."""
        said = []
        for column in columns:
            fair, own = (self.first(column.setting, protocol) for protocol in ("fair", "own"))
            if set(fair) != set(own):
                said.append(f"{column.short} ({_titles(fair)} by fair, {_titles(own)} by own copies)")
        return [f"The fair protocol and own copies disagree about who is first: {'; '.join(said)}."] if said else []

    def targets(self, dataset: str) -> list[float]:
        """The accuracies whose cost is counted: the paper's, and where few reach that, the highest that most do.

        The second is a multiple of 5%, chosen by the fair protocol for all of them.
        """
        papers = self.scale.targets[dataset]
        found = [outcome for outcome in self.methods(self.main(dataset).setting).values() if outcome.state == "finished"]

        def most_reach(target: float) -> bool:
            costs = [outcome.cost("fair", target, "rounds") for outcome in found]
            return 2 * sum(cost is not None and cost.everywhere for cost in costs) > len(found)

        lower = (share / 100 for share in range(95, 0, -5) if papers / 2 <= share / 100 < papers)
        common = None if most_reach(papers) else next((target for target in lower if most_reach(target)), None)
        return [papers] if common is None or len(found) < 2 else [papers, common]

    def of_dim(self, setting: str, d1: int, mrl: bool = True) -> Outcome:
        """FedMRL with this d1; the plain run stands for it where it has the same d1 and no other was made."""
        found = self.of(setting, dim_variant(d1, mrl))
        if found.cells or not mrl:
            return found
        plain = self.of(setting, "fedmrl")
        same = all(cell.recipe["method"].get("d1") == d1 and cell.recipe["method"].get("mrl", True) for cell in plain.cells)
        return plain if same else found

    def columns(self, kind: Kind = "heterogeneous") -> list[Column]:
        """The columns of a table, by dataset and then by federation."""
        suffix = "-homogeneous" if kind == "homogeneous" else ""
        return [
            Column(dataset, federation, f"{dataset}-{federation}{suffix}", self._titles[federation])
            for dataset in self.scale.datasets
            for federation in self.scale.federations
        ]

    def main(self, dataset: str) -> Column:
        """The column that figures look into."""
        return next(c for c in self.columns() if (c.dataset, c.federation) == (dataset, self.scale.main))

    @cached_property
    def _titles(self) -> dict[str, str]:
        """What a federation is called. How many take part is known from any run in it; before there is one, it is not said."""
        said = {}
        for federation in self.scale.federations:
            recipes = (o.cells[0].recipe for (setting, _), o in self._cells.items() if federation in setting.split("-")[1:2])
            share = next((r["participation"] for r in recipes if isinstance(r["participation"], float | int)), None)
            said[federation] = f"N={federation.removeprefix('n')}" + ("" if share is None else f", C={100 * share:g}%")
        return said

    def paper(self, kind: Kind, column: Column, method: str) -> float | None:
        """The percentage that the paper prints; None: it says that the method failed to converge."""
        values = printed()[kind][column.dataset][method]
        value: float | None = values[printed()["settings"].index(column.federation)]
        return value

    @property
    def has_paper(self) -> bool:
        """Whether the paper has these experiments, and so numbers to stand beside ours."""
        return self.scale.has_paper

"""Standings: FedMRL's rank and lead among the methods, compared in pairs over common seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedmrl.report.tables import is_undecided
from fedmrl.reproduce.experiments import METHOD_ORDER
from fedmrl.reproduce.measurements import Column, Kind, Measurement, Measurements, on_shared_seeds
from fedmrl.results import Protocol

BASELINES = tuple(method for method in METHOD_ORDER if method != "fedmrl")


@dataclass(frozen=True)
class Margin:
    """FedMRL's lead over the best of some other methods, in points."""

    points: float
    against: str
    complete: bool = True
    """Whether all of the others are measured; if not, the lead may still shrink."""
    seeds: tuple[int, ...] = ()
    """The seeds that both methods have."""
    level: bool = False
    """Whether it is too close to call: both print the same number, or the difference may be chance (`is_undecided`)."""

    @property
    def ahead(self) -> bool:
        """Whether FedMRL is clearly ahead."""
        return self.points > 0 and not self.level

    @property
    def behind(self) -> bool:
        """Whether FedMRL is clearly behind."""
        return self.points < 0 and not self.level


def print_alike(one: float, other: float) -> bool:
    """Whether tables print two percentages with the same digits.

    >>> print_alike(80.001, 80.004), print_alike(80.00, 80.01)
    (True, False)
    """
    return f"{one:.2f}" == f"{other:.2f}"


def lead(ours: Measurement, theirs: Measurement, protocol: Protocol, against: str = "") -> Margin | None:
    """The lead of one measurement over another, if both converged and share a seed."""
    one, other = on_shared_seeds(ours, theirs)
    a, b = one.mean(protocol), other.mean(protocol)
    if a is None or b is None:
        return None
    pairs = zip(one.accuracies(protocol), other.accuracies(protocol), strict=True)
    level = print_alike(a, b) or is_undecided([first - second for first, second in pairs])
    return Margin(a - b, against, seeds=one.seeds, level=level)


def leads(measurements: Measurements, column: Column, protocol: Protocol, others: Iterable[str]) -> list[Margin]:
    """FedMRL's lead over each comparable one of the others."""
    found = measurements.compared(column.setting)
    margins = (lead(found["fedmrl"], found[method], protocol, method) for method in others)
    return [margin for margin in margins if margin]


def measured_margin(measurements: Measurements, column: Column, protocol: Protocol, others: Sequence[str]) -> Margin | None:
    """FedMRL's smallest measured lead, which is over the best of the others."""
    margins = leads(measurements, column, protocol, others)
    if not margins:
        return None
    found = measurements.compared(column.setting)
    complete = all(found[method].state in ("finished", "failed") for method in others)
    return replace(min(margins, key=lambda margin: margin.points), complete=complete)


def paper_margin(measurements: Measurements, kind: Kind, column: Column, others: Sequence[str]) -> Margin | None:
    """FedMRL's lead in the paper's own numbers."""
    return margin_of({method: measurements.paper(kind, column, method) for method in METHOD_ORDER}, others)


def margin_of(values: Mapping[str, float | None], others: Iterable[str]) -> Margin | None:
    """FedMRL's lead over the best of the others in a column of numbers, in which None means a failed method.

    >>> margin_of({"fedmrl": 60.0, "fml": 50.0, "fedkd": None}, ["fml", "fedkd"])
    Margin(points=10.0, against='fml', complete=True, seeds=(), level=False)
    """
    known = {method: value for method in others if (value := values.get(method)) is not None}
    ours = values.get("fedmrl")
    if ours is None or not known:
        return None
    best = max(known, key=lambda method: known[method])
    return Margin(ours - known[best], best, level=print_alike(ours, known[best]))


@dataclass(frozen=True)
class Standing:
    """FedMRL's standing among the measured methods."""

    rank: int
    of: int
    first: bool
    """Whether FedMRL converged, and every other method that did is clearly behind."""
    level: bool
    """Whether no method is clearly ahead, but one is too close to call."""
    margin: Margin | None


def standing(measurements: Measurements, column: Column, protocol: Protocol) -> Standing | None:
    """FedMRL's rank and lead, if any other method is measured; failed methods rank last."""
    found = {m: o for m, o in measurements.compared(column.setting).items() if o.state in ("finished", "failed")}
    if "fedmrl" not in found or len(found) == 1:
        return None
    margins = leads(measurements, column, protocol, BASELINES)
    converged = found["fedmrl"].state == "finished"
    behind = sum(m.behind for m in margins) if converged else sum(o.state == "finished" for o in found.values())
    level = converged and not behind and any(m.level for m in margins)
    return Standing(
        rank=1 + behind,
        of=len(found),
        first=converged and not behind and not level,
        level=level,
        margin=measured_margin(measurements, column, protocol, BASELINES),
    )

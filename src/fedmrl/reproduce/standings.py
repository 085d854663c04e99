"""Standings: whether FedMRL is ahead of the others and by how much, pair by pair over the seeds that the two have in common."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedmrl.report.tables import undecided
from fedmrl.reproduce.experiments import METHOD_ORDER
from fedmrl.reproduce.outcomes import Column, Kind, Outcome, Outcomes, in_pair
from fedmrl.results import Protocol

BASELINES = tuple(method for method in METHOD_ORDER if method != "fedmrl")


@dataclass(frozen=True)
class Margin:
    """How far FedMRL is ahead of the best of some others, in points."""

    points: float
    against: str
    complete: bool = True
    """Whether all of the others are known; else a better one may yet come."""
    seeds: tuple[int, ...] = ()
    """Over which it was measured."""
    level: bool = False
    """Whether the two print alike, or differ by less than their seeds do: then neither is ahead."""

    @property
    def ahead(self) -> bool:
        """Whether FedMRL is clearly ahead."""
        return self.points > 0 and not self.level

    @property
    def behind(self) -> bool:
        """Whether FedMRL is clearly behind."""
        return self.points < 0 and not self.level


def print_alike(one: float, other: float) -> bool:
    """Whether tables show two percentages by the same digits.

    >>> print_alike(80.001, 80.004), print_alike(80.00, 80.01)
    (True, False)
    """
    return f"{one:.2f}" == f"{other:.2f}"


def lead(ours: Outcome, theirs: Outcome, protocol: Protocol, against: str = "") -> Margin | None:
    """The lead of one outcome over another, if both converged and share a seed."""
    one, other = in_pair(ours, theirs)
    a, b = one.mean(protocol), other.mean(protocol)
    if a is None or b is None:
        return None
    pairs = zip(one.accuracies(protocol), other.accuracies(protocol), strict=True)
    level = print_alike(a, b) or undecided([first - second for first, second in pairs])
    return Margin(a - b, against, seeds=one.seeds, level=level)


def leads(outcomes: Outcomes, column: Column, protocol: Protocol, others: Iterable[str]) -> list[Margin]:
    """FedMRL's lead over each of the others that it can be compared with."""
    found = outcomes.compared(column.setting)
    margins = (lead(found["fedmrl"], found[method], protocol, method) for method in others)
    return [margin for margin in margins if margin]


def measured_margin(outcomes: Outcomes, column: Column, protocol: Protocol, others: Sequence[str]) -> Margin | None:
    """FedMRL's smallest lead: that over the best of the others, in what was measured."""
    margins = leads(outcomes, column, protocol, others)
    if not margins:
        return None
    found = outcomes.compared(column.setting)
    complete = all(found[method].state in ("finished", "failed") for method in others)
    return replace(min(margins, key=lambda margin: margin.points), complete=complete)


def printed_margin(outcomes: Outcomes, kind: Kind, column: Column, others: Sequence[str]) -> Margin | None:
    """FedMRL's lead in what the paper prints."""
    return margin_of({method: outcomes.paper(kind, column, method) for method in METHOD_ORDER}, others)


def margin_of(values: Mapping[str, float | None], others: Iterable[str]) -> Margin | None:
    """FedMRL's lead over the best of the others in a column of numbers; None is one that failed, and so no rival.

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
    """Where FedMRL stands among the methods that were measured."""

    rank: int
    of: int
    first: bool
    """Whether it converged, and every other that did is clearly behind."""
    level: bool
    """Whether none is clearly ahead of it, but one is neither ahead nor behind."""
    margin: Margin | None


def standing(outcomes: Outcomes, column: Column, protocol: Protocol) -> Standing | None:
    """FedMRL's rank and lead, if there are others to compare it with; one that failed ranks below all that did not."""
    found = {m: o for m, o in outcomes.compared(column.setting).items() if o.state in ("finished", "failed")}
    if "fedmrl" not in found or len(found) == 1:
        return None
    margins = leads(outcomes, column, protocol, BASELINES)
    converged = found["fedmrl"].state == "finished"
    behind = sum(m.behind for m in margins) if converged else sum(o.state == "finished" for o in found.values())
    level = converged and not behind and any(m.level for m in margins)
    return Standing(
        rank=1 + behind,
        of=len(found),
        first=converged and not behind and not level,
        level=level,
        margin=measured_margin(outcomes, column, protocol, BASELINES),
    )

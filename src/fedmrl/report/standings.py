"""Standings: whether FedMRL is ahead of the others and by how much, over the seeds that all of them have in common."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedmrl.report.outcomes import Column, Kind, Outcomes
from fedmrl.report.tables import undecided
from fedmrl.reproduce.cells import Protocol
from fedmrl.reproduce.experiments import METHOD_ORDER

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


def margin(values: Mapping[str, float | None], others: Iterable[str]) -> Margin | None:
    """FedMRL's lead over the best of the others; a value of None is one that failed, and so no rival.

    >>> margin({"fedmrl": 60.0, "fml": 50.0, "fedkd": None}, ["fml", "fedkd"])
    Margin(points=10.0, against='fml', complete=True, seeds=(), level=False)
    """
    known = {method: value for method in others if (value := values.get(method)) is not None}
    ours = values.get("fedmrl")
    if ours is None or not known:
        return None
    best = max(known, key=lambda method: known[method])
    return Margin(ours - known[best], best, level=print_alike(ours, known[best]))


def print_alike(one: float, other: float) -> bool:
    """Whether tables show two percentages by the same digits.

    >>> print_alike(80.001, 80.004), print_alike(80.00, 80.01)
    (True, False)
    """
    return f"{one:.2f}" == f"{other:.2f}"


def measured_margin(outcomes: Outcomes, column: Column, protocol: Protocol, others: Sequence[str]) -> Margin | None:
    """FedMRL's lead in what was measured, if it finished and any other did."""
    found = outcomes.compared(column.setting)
    lead = margin({method: outcome.mean(protocol) for method, outcome in found.items()}, others)
    if not lead:
        return None
    complete = all(found[method].state in ("finished", "diverged") for method in others)
    pairs = zip(found["fedmrl"].accuracies(protocol), found[lead.against].accuracies(protocol), strict=True)
    level = lead.level or undecided([ours - theirs for ours, theirs in pairs])
    return replace(lead, complete=complete, seeds=found["fedmrl"].seeds, level=level)


def printed_margin(outcomes: Outcomes, kind: Kind, column: Column, others: Sequence[str]) -> Margin | None:
    """FedMRL's lead in what the paper prints."""
    return margin({method: outcomes.paper(kind, column, method) for method in METHOD_ORDER}, others)


@dataclass(frozen=True)
class Standing:
    """Where FedMRL stands among the methods that were measured."""

    rank: int
    of: int
    first: bool
    """Whether it finished, and the best other that did is clearly behind."""
    margin: Margin | None

    @property
    def level(self) -> bool:
        """Whether it is neither ahead of the best other nor behind."""
        return self.margin is not None and self.margin.level


def standing(outcomes: Outcomes, column: Column, protocol: Protocol) -> Standing | None:
    """FedMRL's rank and lead, if there are others to compare it with; one that diverged ranks below all that did not."""
    found = {m: o for m, o in outcomes.compared(column.setting).items() if o.state in ("finished", "diverged")}
    if "fedmrl" not in found or len(found) == 1:
        return None
    ours = found["fedmrl"].mean(protocol)
    others = [mean for method in BASELINES if method in found and (mean := found[method].mean(protocol)) is not None]
    better = sum(ours is None or (mean > ours and not print_alike(mean, ours)) for mean in others)
    lead = measured_margin(outcomes, column, protocol, BASELINES)
    first = ours is not None and better == 0 and not (lead and lead.level)
    return Standing(1 + better, len(found), first, lead)

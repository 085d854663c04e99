"""Standings: whether FedMRL is ahead of the others and by how much, over the seeds that all of them have in common."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedmrl.report.outcomes import Column, Kind, Outcomes
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


def margin(values: Mapping[str, float | None], others: Iterable[str]) -> Margin | None:
    """FedMRL's lead over the best of the others; a value of None is one that failed, and so no rival.

    >>> margin({"fedmrl": 60.0, "fml": 50.0, "fedkd": None}, ["fml", "fedkd"])
    Margin(points=10.0, against='fml', complete=True, seeds=())
    """
    known = {method: value for method in others if (value := values.get(method)) is not None}
    ours = values.get("fedmrl")
    if ours is None or not known:
        return None
    best = max(known, key=lambda method: known[method])
    return Margin(ours - known[best], best)


def measured_margin(outcomes: Outcomes, column: Column, protocol: Protocol, others: Sequence[str]) -> Margin | None:
    """FedMRL's lead in what was measured, if it finished and any other did."""
    found = outcomes.compared(column.setting)
    lead = margin({method: outcome.mean(protocol) for method, outcome in found.items()}, others)
    complete = all(found[method].state in ("finished", "diverged") for method in others)
    return lead and Margin(lead.points, lead.against, complete, found["fedmrl"].seeds)


def printed_margin(outcomes: Outcomes, kind: Kind, column: Column, others: Sequence[str]) -> Margin | None:
    """FedMRL's lead in what the paper prints."""
    return margin({method: outcomes.paper(kind, column, method) for method in METHOD_ORDER}, others)


@dataclass(frozen=True)
class Standing:
    """Where FedMRL stands among the methods that were measured."""

    rank: int
    of: int
    first: bool
    """Whether it finished, and every other that did is behind."""
    margin: Margin | None


def standing(outcomes: Outcomes, column: Column, protocol: Protocol) -> Standing | None:
    """FedMRL's rank and lead, if there are others to compare it with; one that diverged ranks below all that did not."""
    found = {m: o for m, o in outcomes.compared(column.setting).items() if o.state in ("finished", "diverged")}
    if "fedmrl" not in found or len(found) == 1:
        return None
    ours = found["fedmrl"].mean(protocol)
    others = [mean for method in BASELINES if method in found and (mean := found[method].mean(protocol)) is not None]
    better = sum(ours is None or mean > ours for mean in others)
    first = ours is not None and all(mean < ours for mean in others)
    return Standing(1 + better, len(found), first, measured_margin(outcomes, column, protocol, BASELINES))

"""Whose accuracy counts: three protocols, the headline first, and the same rule for every method."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

Protocol = Literal["fair", "own", "paper"]
PROTOCOLS: Mapping[Protocol, str] = {
    "fair": "last round, all clients, with the shared part that the server has last",
    "own": "last round, all clients, with the copy of the shared part that each trained last",
    "paper": "best round, its participants, each with the model it has just trained",
}
SHORT: Mapping[Protocol, str] = {"fair": "fair", "own": "own copies", "paper": "best round"}


class Counted(NamedTuple):
    """Where in a run's accuracies the number of a protocol stands."""

    whose: Literal["all", "participants"]
    view: str
    which: Literal["last", "best"]


def counted(protocol: Protocol, view: str) -> Counted:
    """What a protocol counts, given the view that a method's headline takes (`aggregated`, or `own` if it hears no server).

    >>> counted("fair", "aggregated")
    Counted(whose='all', view='aggregated', which='last')
    """
    if protocol == "paper":
        return Counted("participants", "own", "best")
    return Counted("all", view if protocol == "fair" else "own", "last")

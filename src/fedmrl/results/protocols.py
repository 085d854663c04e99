"""Evaluation protocols: which accuracy counts, for every method alike; the headline's comes first."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from fedmrl.errors import UserError

Protocol = Literal["fair", "own", "paper"]
PROTOCOLS: Mapping[Protocol, str] = {
    "fair": "all clients after the last round, each with the server's latest shared part",
    "own": "all clients after the last round, each with the copy of the shared part that it trained last",
    "paper": "the participants of the best round, each with the model it has just trained",
}


class Counted(NamedTuple):
    """The place of a protocol's number in a run's accuracies."""

    whose: Literal["all", "participants"]
    view: str
    which: Literal["last", "best"]


def counted(protocol: Protocol, view: str) -> Counted:
    """The accuracy that a protocol counts; `view` is the method's headline view.

    >>> counted("fair", "aggregated")
    Counted(whose='all', view='aggregated', which='last')
    """
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        raise UserError(f"protocol is {protocol!r:.80}; choose {', '.join(PROTOCOLS)}")
    if protocol == "paper":
        return Counted("participants", "own", "best")
    return Counted("all", view if protocol == "fair" else "own", "last")

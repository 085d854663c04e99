"""Accuracy by clients (all or participants), view (own or aggregated shared part) and mode (how a client predicts)."""

from collections.abc import ItemsView, Iterator
from typing import Generic, Literal, TypeVar

from pydantic import ConfigDict, RootModel

from fedmrl.schema import Part

Whose = Literal["all", "participants"]
WHOSE: tuple[Whose, ...] = ("all", "participants")
View = Literal["own", "aggregated"]
T = TypeVar("T")


class ByMode(RootModel[dict[str, T]], Generic[T]):
    """A value for each mode, the headline mode first.

    >>> ByMode[float]({"mix-large": 0.9, "mix-small": 0.8})["mix-small"]
    0.8
    """

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    def __getitem__(self, mode: str) -> T:
        return self.root[mode]

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(self.root)

    def __contains__(self, mode: object) -> bool:
        return mode in self.root

    def __len__(self) -> int:
        return len(self.root)

    def items(self) -> ItemsView[str, T]:
        """Each mode with its value."""
        return self.root.items()

    @property
    def first(self) -> T:
        """The value of the headline mode."""
        return next(iter(self.root.values()))


M = TypeVar("M", bound=ByMode[float] | ByMode["LastAndBest"])


class ByView(Part, Generic[M]):
    """Values with each client's own last copy of the shared part, and with the server's aggregated one."""

    own: M
    aggregated: M | None = None
    """None where predictions do not depend on the server."""

    def __getitem__(self, view: str) -> M:
        if (found := self.get(view)) is None:
            raise KeyError(view)
        return found

    def get(self, view: str) -> M | None:
        """The values of a view, or None."""
        return dict(self.items()).get(view)

    def items(self) -> list[tuple[str, M]]:
        """Each view with its values."""
        both = ("own", self.own), ("aggregated", self.aggregated)
        return [(view, by_mode) for view, by_mode in both if by_mode is not None]


class LastAndBest(Part):
    """Accuracy at the last round and at the best round."""

    last: float
    best: float
    best_round: int


class Scores(ByMode[LastAndBest]):
    """Accuracy by mode; `last`, `best` and `best_round` are those of the headline mode.

    >>> scores = Scores.model_validate({"local": {"last": 0.8, "best": 0.9, "best_round": 2}})
    >>> scores.last, scores["local"].best
    (0.8, 0.9)
    """

    @property
    def last(self) -> float:
        """Accuracy at the last round."""
        return self.first.last

    @property
    def best(self) -> float:
        """Accuracy at the best round."""
        return self.first.best

    @property
    def best_round(self) -> int:
        """The best round."""
        return self.first.best_round


class Accuracy(Part):
    """A run's accuracy, mean over clients: `accuracy.all.own.last`."""

    all: ByView[Scores]
    participants: ByView[Scores]

    def __getitem__(self, whose: Whose) -> ByView[Scores]:
        return self.all if whose == "all" else self.participants


Means = ByView[ByMode[float]]


class RoundAccuracy(Part):
    """A round's accuracy, mean over clients, as far as it was measured."""

    participants: Means | None = None
    """None if no client replied."""
    all: Means | None = None

    def __getitem__(self, whose: Whose) -> Means | None:
        return self.all if whose == "all" else self.participants

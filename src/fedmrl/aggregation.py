"""Aggregation: how the server makes one set of weights of those that clients sent, also when some of them lie.

Legend of shapes: K clients.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.messages import Tensors
from fedmrl.registry import Registry
from fedmrl.table import Named


class Aggregation(Named, ABC):
    """A rule by which the server combines clients' weights; what it can be set to are its fields."""

    summary: ClassVar[str]

    @abstractmethod
    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
        """One set of weights of several equally named ones, in the order of clients; `weights` say how much each counts."""

    def check(self, clients: int) -> None:
        """Refuses, in a sentence, a number of clients that the rule cannot work with; asked at the start, and in each round."""


RULES: Registry[type[Aggregation]] = Registry("aggregation rule", "fedmrl.aggregation")


class Mean(Aggregation):
    """The weighted mean: exact, and led astray by a single client that lies."""

    name: ClassVar[str] = "mean"
    summary: ClassVar[str] = "the mean, weighted as method.weighting says"

    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
        """The weighted mean."""
        return weighted_mean(contents, weights)


class Median(Aggregation):
    """The middle value of each number (Yin et al., 2018): right as long as fewer than half of the clients lie."""

    name: ClassVar[str] = "median"
    summary: ClassVar[str] = "of each number the middle one, all clients alike"

    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
        """The median; of an even number of clients, the mean of the two in the middle."""
        return _trimmed(contents, (len(contents) - 1) // 2)


class TrimmedMean(Aggregation):
    """The mean of each number without the outermost ones (Yin et al., 2018)."""

    name: ClassVar[str] = "trimmed-mean"
    summary: ClassVar[str] = "of each number the mean without the lowest and the highest ones, all clients alike"

    trim: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        0.1, description="the share of clients that is left out at each end, rounded up"
    )

    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
        """The trimmed mean; something is always left, however few clients there are."""
        # 0.1 × 10 is a little more than 1 in binary, and one is meant.
        cut = math.ceil(self.trim * len(contents) - 1e-9)
        return _trimmed(contents, min(cut, (len(contents) - 1) // 2))


class Krum(Aggregation):
    """The weights that lie closest to their neighbours' (Blanchard et al., 2017): one client's, whole."""

    name: ClassVar[str] = "krum"
    summary: ClassVar[str] = "the client's whose weights are closest to most others'; or the mean of a few of them"

    liars: Annotated[int, Field(ge=0)] = Field(1, description="how many clients of a round may lie")
    keep: Annotated[int, Field(ge=1)] = Field(1, description="how many clients' weights are averaged; above 1 it is Multi-Krum")

    def check(self, clients: int) -> None:
        """Krum is proven for rounds of at least 2 · liars + 3 clients."""
        if clients < 2 * self.liars + 3:
            raise UserError(
                f"aggregation.liars is {self.liars}, for which krum needs at least {2 * self.liars + 3} clients a round, and "
                f"there are {clients}; let more take part, or use the median"
            )
        if self.keep > clients - self.liars:
            raise UserError(
                f"aggregation.keep is {self.keep}, and of {clients} clients a round {self.liars} may lie; choose at most "
                f"{clients - self.liars}"
            )

    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
        """The mean of the `keep` clients' with the lowest scores: the sum of squared distances to the nearest others."""
        chosen = krum_order(contents, self.liars)[: self.keep]
        return weighted_mean([contents[k] for k in sorted(chosen)], [1] * len(chosen))


for _rule in (Mean, Median, TrimmedMean, Krum):
    RULES.add(_rule.name, _rule, module=__name__)

MEAN = Mean()


def combine(rule: Aggregation, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
    """What a rule makes of several clients' weights; refused unless it is of the form of each of them."""
    try:
        rule.check(len(contents))
        combined = rule.combine(contents, weights)
        form = {name: (tensor.shape, tensor.dtype) for name, tensor in contents[0].items()}
        if {name: (tensor.shape, tensor.dtype) for name, tensor in combined.items()} != form:
            raise UserError(f"aggregation.rule {rule.name!r} gives other names, shapes or types than clients send; mend it")
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except CODE_FAILS as error:
        raise UserError(f"aggregation.rule {rule.name!r} fails ({cause(error)}); mend it") from error
    return combined


def weighted_mean(contents: Iterable[Mapping[str, Tensor]], weights: Iterable[float]) -> Tensors:
    """The weighted mean of equally named tensors, summed in double precision.

    >>> weighted_mean([{"w": torch.tensor(1.0)}, {"w": torch.tensor(4.0)}], [10, 20])
    {'w': tensor(3.)}
    """
    contents, weights = list(contents), list(weights)
    mean, shares = {}, torch.tensor(weights, dtype=torch.float64) / sum(weights)
    for name, tensor in contents[0].items():
        stacked = torch.stack([content[name] for content in contents]).double()
        # Without a wait for the device, which `torch.tensor(…, device=…)` would mean.
        shares = shares.to(tensor.device, non_blocking=True)
        mean[name] = (stacked * shares.view(-1, *[1] * tensor.ndim)).sum(dim=0).to(tensor.dtype)
    return mean


def _trimmed(contents: Sequence[Mapping[str, Tensor]], cut: int) -> Tensors:
    """Of each number the mean without the `cut` lowest and the `cut` highest ones."""
    combined = {}
    for name, tensor in contents[0].items():
        sorted_K = torch.stack([content[name] for content in contents]).double().sort(dim=0).values
        combined[name] = sorted_K[cut : len(contents) - cut].mean(dim=0).to(tensor.dtype)
    return combined


def krum_order(contents: Sequence[Mapping[str, Tensor]], liars: int) -> list[int]:
    """The clients' places, the one closest to its neighbours first.

    >>> krum_order([{"w": torch.tensor([x])} for x in (1.0, 1.1, 1.35, 9.0, 1.2)], liars=1)[:2]
    [1, 4]
    """
    flat_K = torch.stack([torch.cat([tensor.flatten().double() for tensor in content.values()]) for content in contents])
    distances_KK = torch.stack([(flat_K - own).square().sum(dim=1) for own in flat_K])
    neighbours = max(1, len(contents) - liars - 2)
    # Each client's nearest is itself, at distance 0.
    scores_K = distances_KK.sort(dim=1).values[:, 1 : neighbours + 1].sum(dim=1)
    return [int(k) for k in scores_K.argsort(stable=True)]

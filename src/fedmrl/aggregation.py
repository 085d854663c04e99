"""Aggregation rules: how the server combines clients' weights, including rules robust to Byzantine clients.

Legend of shapes: K clients.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedmrl.errors import CODE_FAILS, UserCodeError, UserError, cause
from fedmrl.guard import guard, is_ours, nothing, tensors
from fedmrl.messages import Tensors
from fedmrl.registry import Registry
from fedmrl.table import Named


class Aggregation(Named, ABC):
    """A rule by which the server combines clients' weights; its fields are its settings."""

    summary: ClassVar[str]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.summary = cls.__dict__.get("summary", (cls.__doc__ or "").strip().partition("\n")[0])
        guard(cls, "aggregation rule", {"check": nothing})

    @abstractmethod
    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
        """Combines the clients' tensors, which have equal names and come in the order of clients, weighted by `weights`."""

    def check(self, clients: int) -> None:
        """Raises `UserError` if the rule cannot work with this number of clients; called at the start and in each round."""


RULES: Registry[type[Aggregation]] = Registry("aggregation rule", "fedmrl.aggregation")


class Mean(Aggregation):
    """The weighted mean, which a single Byzantine client can corrupt."""

    name: ClassVar[str] = "mean"
    summary: ClassVar[str] = "the mean, weighted as method.weighting says"

    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
        """The weighted mean."""
        return weighted_mean(contents, weights)


class Median(Aggregation):
    """The coordinate-wise median (Yin et al., 2018), robust while fewer than half of the clients are Byzantine."""

    name: ClassVar[str] = "median"
    summary: ClassVar[str] = "the coordinate-wise median, unweighted"

    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
        """The median; for an even number of clients, the mean of the middle two."""
        return _trimmed(contents, (len(contents) - 1) // 2)


class TrimmedMean(Aggregation):
    """The coordinate-wise mean without the extreme values (Yin et al., 2018)."""

    name: ClassVar[str] = "trimmed-mean"
    summary: ClassVar[str] = "the coordinate-wise mean without the lowest and highest values, unweighted"

    trim: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        0.1, description="the share of clients that is left out at each end, rounded up"
    )

    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
        """The trimmed mean, of at least one value."""
        # In binary 0.1 × 10 is slightly more than 1, which must not round up to 2.
        cut = math.ceil(self.trim * len(contents) - 1e-9)
        return _trimmed(contents, min(cut, (len(contents) - 1) // 2))


class Krum(Aggregation):
    """Krum (Blanchard et al., 2017): the weights of the client that is closest to its neighbours."""

    name: ClassVar[str] = "krum"
    summary: ClassVar[str] = "the weights of the client closest to most others, or the mean of several such clients"

    byzantine: Annotated[int, Field(ge=0)] = Field(1, description="number of Byzantine clients to tolerate in a round")
    keep: Annotated[int, Field(ge=1)] = Field(1, description="number of clients to average; above 1: Multi-Krum")

    def check(self, clients: int) -> None:
        """Raises `UserError` below 2 · byzantine + 3 clients, for which Krum has no guarantee."""
        if clients < 2 * self.byzantine + 3:
            raise UserError(
                f"aggregation.byzantine is {self.byzantine}, for which krum needs at least {2 * self.byzantine + 3} clients "
                f"a round, and there are {clients}; let more take part, or use the median"
            )
        if self.keep > clients - self.byzantine:
            raise UserError(
                f"aggregation.keep is {self.keep}, and {self.byzantine} of {clients} clients a round may be Byzantine; "
                f"choose at most {clients - self.byzantine}"
            )

    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
        """The mean of the `keep` clients with the lowest sum of squared distances to their nearest neighbours."""
        chosen = krum_order(contents, self.byzantine)[: self.keep]
        return weighted_mean([contents[k] for k in sorted(chosen)], [1] * len(chosen))


for _rule in (Mean, Median, TrimmedMean, Krum):
    RULES.add(_rule.name, _rule, module=__name__)

MEAN = Mean()


def combine(rule: Aggregation, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
    """Combines clients' weights by a rule, and checks that the result has their names, shapes and dtypes."""
    try:
        rule.check(len(contents))
        combined = rule.combine(contents, weights)
        form = {name: (tensor.shape, tensor.dtype) for name, tensor in contents[0].items()}
        if problem := tensors(combined):
            raise UserCodeError(f"aggregation.rule {rule.name!r}: combine {problem}; mend it")
        if {name: (tensor.shape, tensor.dtype) for name, tensor in combined.items()} != form:
            raise UserCodeError(f"aggregation.rule {rule.name!r} gives other names, shapes or types than clients send; mend it")
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except CODE_FAILS as error:
        if is_ours(type(rule)):
            raise
        raise UserCodeError(f"aggregation.rule {rule.name!r} fails ({cause(error)}); mend it") from error
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
        # Unlike `torch.tensor(…, device=…)`, this does not wait for the device.
        shares = shares.to(tensor.device, non_blocking=True)
        mean[name] = (stacked * shares.view(-1, *[1] * tensor.ndim)).sum(dim=0).to(tensor.dtype)
    return mean


def _trimmed(contents: Sequence[Mapping[str, Tensor]], cut: int) -> Tensors:
    """The coordinate-wise mean without the `cut` lowest and `cut` highest values."""
    combined = {}
    for name, tensor in contents[0].items():
        sorted_K = torch.stack([content[name] for content in contents]).double().sort(dim=0).values
        combined[name] = sorted_K[cut : len(contents) - cut].mean(dim=0).to(tensor.dtype)
    return combined


def krum_order(contents: Sequence[Mapping[str, Tensor]], byzantine: int) -> list[int]:
    """The clients' indices, ordered by distance to their nearest neighbours.

    >>> krum_order([{"w": torch.tensor([x])} for x in (1.0, 1.1, 1.35, 9.0, 1.2)], byzantine=1)[:2]
    [1, 4]
    """
    flat_K = torch.stack([torch.cat([tensor.flatten().double() for tensor in content.values()]) for content in contents])
    distances_KK = torch.stack([(flat_K - own).square().sum(dim=1) for own in flat_K])
    neighbours = max(1, len(contents) - byzantine - 2)
    # Each client's nearest neighbour is itself, at distance 0.
    scores_K = distances_KK.sort(dim=1).values[:, 1 : neighbours + 1].sum(dim=1)
    return [int(k) for k in scores_K.argsort(stable=True)]

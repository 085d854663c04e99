"""A custom aggregation rule: the geometric median (Pillutla et al., 2022), robust to few Byzantine clients."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

import fedmrl
from fedmrl.aggregation import weighted_mean


@fedmrl.register
class GeometricMedian(fedmrl.Aggregation):
    """The point with the smallest sum of distances to all uploads."""

    name = "geometric-median"
    summary = "the point with the smallest sum of distances to all uploads"

    steps: Annotated[int, Field(ge=1)] = Field(20, description="steps of Weiszfeld's algorithm")

    def combine(self, contents: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
        """Repeats the weighted mean, with weights inverse to the distance from the last one (Weiszfeld's algorithm)."""
        points = torch.stack([torch.cat([tensor.flatten().double() for tensor in content.values()]) for content in contents])
        counts = torch.tensor(weights, dtype=torch.float64, device=points.device)
        shares = counts / counts.sum()
        for _ in range(self.steps):
            distances = (points - shares @ points).norm(dim=1).clamp(min=1e-9)
            shares = counts / distances
            shares = shares / shares.sum()
        return weighted_mean(contents, shares.tolist())

"""A custom dataset: points on the arms of a spiral, one class per arm."""

from typing import Annotated

import numpy as np
from pydantic import Field

import fedmrl


@fedmrl.register
class Spirals(fedmrl.DataSource):
    """Points in the plane, on the arms of a spiral."""

    name = "spirals"

    arms: Annotated[int, Field(ge=2, le=20)] = Field(3, description="number of arms, each a class")
    samples: Annotated[int, Field(ge=1)] = Field(300, description="points on each arm")
    noise: Annotated[float, Field(ge=0)] = Field(0.1, description="standard deviation of the points around their arm")

    def read(self) -> fedmrl.Samples:
        """Draws the points, from a fixed seed."""
        rng = np.random.default_rng(0)
        y = np.repeat(np.arange(self.arms), self.samples)
        along = rng.uniform(0.2, 1.0, len(y))
        angle = 2 * np.pi * (along + y / self.arms)
        x = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.normal(0, self.noise, (len(y), 2))
        return fedmrl.Samples(x, y, classes=tuple(f"arm {arm}" for arm in range(self.arms)))

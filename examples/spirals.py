"""A dataset of one's own: points on the arms of a spiral, a class for each arm."""

from typing import Annotated

import numpy as np
from pydantic import Field

import fedmrl


@fedmrl.register
class Spirals(fedmrl.DataSource):
    """Points on the arms of a spiral, as two numbers each."""

    name = "spirals"

    arms: Annotated[int, Field(ge=2, le=20)] = Field(3, description="how many arms, and so classes, there are")
    samples: Annotated[int, Field(ge=1)] = Field(300, description="points on each arm")
    noise: Annotated[float, Field(ge=0)] = Field(0.1, description="the standard deviation of points around their arm")

    def read(self) -> fedmrl.Samples:
        """The points, the same ones each time."""
        rng = np.random.default_rng(0)
        y = np.repeat(np.arange(self.arms), self.samples)
        along = rng.uniform(0.2, 1.0, len(y))
        angle = 2 * np.pi * (along + y / self.arms)
        x = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.normal(0, self.noise, (len(y), 2))
        return fedmrl.Samples(x, y, classes=tuple(f"arm {arm}" for arm in range(self.arms)))

"""A model of one's own: fully connected layers with shortcuts, for samples of any shape."""

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

import fedmrl


class Block(nn.Module):
    """Two layers, and a shortcut around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """The input, and what the layers add to it."""
        return nn.functional.relu(x + self.layers(x))


@fedmrl.register
class ResMLP(fedmrl.Model):
    """A linear layer, then blocks; the last one's output is the representation."""

    name = "resmlp"

    width: Annotated[int, Field(ge=1)] = Field(32, description="how wide each layer is, and so the representation")
    blocks: Annotated[int, Field(ge=1)] = Field(2, description="how many blocks there are")

    def build(self, shape: tuple[int, ...], classes: int) -> fedmrl.Split:
        """A new network."""
        stem = [nn.Flatten(), nn.Linear(math.prod(shape), self.width), nn.ReLU()]
        extractor = nn.Sequential(*stem, *(Block(self.width) for _ in range(self.blocks)))
        return fedmrl.Split(extractor, nn.Linear(self.width, classes), dim=self.width)

    def with_dim(self, dim: int) -> "ResMLP":
        """The same network with another representation dimension, so that clients can share one."""
        return self.model_copy(update={"width": dim})

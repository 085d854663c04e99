"""A custom model: fully connected layers with residual connections, for samples of any shape."""

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

import fedmrl


class Block(nn.Module):
    """Two layers with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Adds the layers' output to the input."""
        return nn.functional.relu(x + self.layers(x))


@fedmrl.register
class ResMLP(fedmrl.Model):
    """A linear layer, then blocks, of which the last one outputs the representation."""

    name = "resmlp"

    width: Annotated[int, Field(ge=1)] = Field(32, description="width of all layers and of the representation")
    blocks: Annotated[int, Field(ge=1)] = Field(2, description="number of blocks")

    def build(self, shape: tuple[int, ...], classes: int) -> fedmrl.Split:
        """Builds a network."""
        stem = [nn.Flatten(), nn.Linear(math.prod(shape), self.width), nn.ReLU()]
        extractor = nn.Sequential(*stem, *(Block(self.width) for _ in range(self.blocks)))
        return fedmrl.Split(extractor, nn.Linear(self.width, classes), dim=self.width)

    def with_dim(self, dim: int) -> "ResMLP":
        """The same network with another representation dimension, so that clients can share one."""
        return self.model_copy(update={"width": dim})

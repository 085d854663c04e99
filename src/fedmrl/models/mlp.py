"""Fully connected networks, for data of any shape: vectors, or images flattened."""

import math
from collections import OrderedDict
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import Field, Strict
from torch import nn

from fedmrl.models.cnn import Width
from fedmrl.models.split import Model, Split


class MLP(Model):
    """Linear layers of the given widths, each with ReLU; the last one outputs the representation."""

    name: ClassVar[str] = "mlp"

    # A tuple, so that models are hashable; strict, so that `true` is not a width.
    hidden: Annotated[tuple[Annotated[Width, Strict()], ...], Field(min_length=1)]

    @property
    def label(self) -> str:
        """The name in tables.

        >>> MLP(hidden=(64, 32)).label
        'MLP(64-32)'
        """
        return f"MLP({'-'.join(map(str, self.hidden))})"

    def build(self, shape: tuple[int, ...], classes: int) -> Split:
        """Builds a network for samples of this shape, with weights from torch's current random state."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for number, (before, width) in enumerate(pairwise([math.prod(shape), *self.hidden]), start=1):
            layers[f"fc{number}"] = nn.Linear(before, width)
            layers[f"relu{number}"] = nn.ReLU()
        return Split(nn.Sequential(layers), nn.Linear(self.hidden[-1], classes), self.hidden[-1])

    def parameters(self, shape: tuple[int, ...], classes: int) -> int:
        """The number of trainable parameters.

        >>> MLP(hidden=(3,)).parameters((4,), classes=2)
        23
        """
        return sum((before + 1) * width for before, width in pairwise([math.prod(shape), *self.hidden, classes]))

    def with_dim(self, dim: int) -> "MLP":
        """This network with a representation of another dimension."""
        return self.model_copy(update={"hidden": (*self.hidden[:-1], dim)})

"""A small network for tokens: the mean of their embeddings, then fully connected layers."""

from collections import OrderedDict
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import Field, Strict
from torch import Tensor, nn

from fedmrl.models.cnn import Width
from fedmrl.models.split import Model, Split


class Text(Model):
    """The mean of the tokens' embeddings, then linear layers of the given widths, each with ReLU."""

    name: ClassVar[str] = "text"

    vocabulary: Annotated[int, Field(ge=2, le=10_000_000)]
    embedding: Width = 32
    hidden: Annotated[tuple[Annotated[Width, Strict()], ...], Field(min_length=1)] = (32,)

    @property
    def label(self) -> str:
        """The name in tables.

        >>> Text(vocabulary=500, hidden=(16,)).label
        'Text(32-16)'
        """
        return f"Text({self.embedding}-{'-'.join(map(str, self.hidden))})"

    def build(self, shape: tuple[int, ...], classes: int) -> Split:
        """Builds a network for rows of tokens, with weights from torch's current random state."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(embedding=nn.Embedding(self.vocabulary, self.embedding), mean=_Mean())
        for number, (before, width) in enumerate(pairwise([self.embedding, *self.hidden]), start=1):
            layers[f"fc{number}"] = nn.Linear(before, width)
            layers[f"relu{number}"] = nn.ReLU()
        return Split(nn.Sequential(layers), nn.Linear(self.hidden[-1], classes), self.hidden[-1])

    def with_dim(self, dim: int) -> "Text":
        """This network with a representation of another dimension."""
        return self.model_copy(update={"hidden": (*self.hidden[:-1], dim)})


class _Mean(nn.Module):
    """The mean over the tokens."""

    def forward(self, embedded_BLD: Tensor) -> Tensor:
        """One vector for each sample."""
        return embedded_BLD.mean(dim=-2)

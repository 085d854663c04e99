"""Local training: the recipe's `[training]` table, and the phases that a method derives from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from torch import Tensor

from fedmrl.table import Table

if TYPE_CHECKING:
    from fedmrl.methods.base import Batch, ClientNet

Sums = dict[str, Tensor]
SumsOf = Literal["all epochs", "last epoch"]
LossFunction = Callable[["ClientNet", "Batch"], "Tensor | tuple[Tensor, Sums]"]


class Augmentation(Table):
    """Augmentation of standardised training images: flip, erase, then crop; each is off by default."""

    flip: bool = Field(False, description="mirror half of the images left to right")
    crop: Annotated[int, Field(ge=0, le=32)] = Field(0, description="pad by this many zeros, then crop back at random")
    erase: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="probability of erasing 4 to 20% of an image")

    @property
    def active(self) -> bool:
        """Whether any augmentation is on."""
        return self.flip or self.crop > 0 or self.erase > 0


class Training(Table):
    """A client's local training in a round, by SGD with a new optimiser for each client and round."""

    lr: Annotated[float, Field(gt=0)] = Field(0.01, description="learning rate")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="SGD momentum")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="L2 penalty added to the gradient")
    clip: Annotated[float, Field(gt=0)] | None = Field(
        None, description="largest norm of the gradient of each part of a client (local, small, projector)"
    )
    epochs: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1, description="passes over the client's training data in a round"
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(64, description="samples per step")
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = Field(
        "fp32", description="type of products; with tf32 and bf16 everything else stays in 32 bits"
    )
    augment: Augmentation = Augmentation()

    def phase(self, loss: LossFunction, parts: tuple[str, ...]) -> "Phase":
        """The default phase: these parts train on all training data, with this table's settings."""
        return Phase(
            loss,
            dict.fromkeys(parts, self.lr),
            epochs=self.epochs,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip=self.clip,
            augment=self.augment,
        )


@dataclass(frozen=True)
class Phase:
    """A phase of a client's local training, as plain data that any engine can run."""

    loss: LossFunction
    lr: Mapping[str, float]
    """The parts that learn, with their learning rates; all others are fixed, in eval mode."""
    epochs: int
    subset: str = "train"
    """The method's subset of the client's training data to use."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    augment: Augmentation = field(default_factory=Augmentation)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Parameters that are clamped to a range after each step."""
    sums_of: SumsOf = "all epochs"
    """The epochs over which the loss's sums are accumulated."""

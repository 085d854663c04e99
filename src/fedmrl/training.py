"""How a client trains: the recipe's `[training]` table, and the phases that a method makes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from torch import Tensor

from fedmrl.table import Table

if TYPE_CHECKING:
    from fedmrl.methods.base import Batch, ClientNet

Sums = dict[str, Tensor]
LossFunction = Callable[["ClientNet", "Batch"], "Tensor | tuple[Tensor, Sums]"]


class Augmentation(Table):
    """What happens to a training image after it is standardised, in this order but the crop last; each off by default."""

    flip: bool = Field(False, description="mirror half of the images left to right")
    crop: Annotated[int, Field(ge=0, le=32)] = Field(0, description="pad by this many zeros, then crop back at random")
    erase: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="chance that a rectangle of 4 to 20% is blanked")

    @property
    def active(self) -> bool:
        """Whether anything is done to an image at all."""
        return self.flip or self.crop > 0 or self.erase > 0


class Training(Table):
    """One client's local training in one round: SGD, its state fresh for each client and round."""

    lr: Annotated[float, Field(gt=0)] = Field(0.01, description="learning rate")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="SGD momentum")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="L2 penalty added to the gradient")
    clip: Annotated[float, Field(gt=0)] | None = Field(
        None, description="largest norm of the gradient of each part of a client (local, small, projector)"
    )
    epochs: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1, description="passes over the client's training data in a round"
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(64, description="samples in a step")
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = Field(
        "fp32", description="what products are computed in; with tf32 and bf16 the rest stays in 32 bits"
    )
    augment: Augmentation = Augmentation()

    def phase(self, loss: LossFunction, parts: tuple[str, ...]) -> "Phase":
        """The ordinary phase: these parts learn from all training data, as this table says."""
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
    """A stretch of a client's local training, as plain data that any engine can carry out."""

    loss: LossFunction
    lr: Mapping[str, float]
    """The parts that learn, with their learning rates. All other parts are fixed, in eval mode."""
    epochs: int
    subset: str = "train"
    """Which of the method's subsets of the client's training data is used."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    augment: Augmentation = field(default_factory=Augmentation)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Parameters that are clamped to a range after each step."""
    sums_of: Literal["all epochs", "last epoch"] = "all epochs"
    """Over which epochs the sums that the loss returns are added up."""

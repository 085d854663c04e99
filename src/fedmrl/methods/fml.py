"""FML (Shen et al., 2020): a private and a shared model teach each other."""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn

from fedmrl.methods.base import Batch, ClientNet, Common, Task, WeightSharing, cross_entropy, divergence
from fedmrl.models import Split


class FML(WeightSharing):
    """Deep mutual learning between the client's own model and a small one, of which only the small one is averaged."""

    name: ClassVar[str] = "fml"
    title: ClassVar[str] = "FML"
    summary: ClassVar[str] = "a shared small model and the local one learn from each other's outputs"
    parts: ClassVar[tuple[str, ...]] = ("local", "small")
    shares: ClassVar[tuple[str, ...]] = ("small",)
    records_every_mode: ClassVar[bool] = True

    alpha: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="weight of the labels in local's loss; the rest is for small's outputs"
    )
    beta: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="weight of the labels in small's loss; the rest is for local's outputs"
    )

    @property
    def modes(self) -> tuple[str, ...]:
        """The client's own model predicts; the small one is recorded, too."""
        return ("local", "small")

    def build(self, local: Split, task: Task) -> ClientNet:
        """Local and small."""
        return ClientNet({"local": local, "small": task.small_model()})

    def new_shared(self, common: Common) -> dict[str, nn.Module]:
        """The small model."""
        return {"small": common.small_model()}

    def loss(self, net: ClientNet, batch: Batch) -> Tensor:
        """α·CE(local) + (1-α)·KL(small‖local) + β·CE(small) + (1-β)·KL(local‖small)."""
        local_BC, small_BC = net.local(batch.x), net.small(batch.x)
        return (
            self.alpha * batch.mean(cross_entropy(local_BC, batch.y_B))
            + (1 - self.alpha) * batch.mean(divergence(small_BC, local_BC))
            + self.beta * batch.mean(cross_entropy(small_BC, batch.y_B))
            + (1 - self.beta) * batch.mean(divergence(local_BC, small_BC))
        )

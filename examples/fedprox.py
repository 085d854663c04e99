"""A custom method: FedProx (Li et al., 2020), for clients that all have the same model."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

import fedmrl
from fedmrl.methods.base import Batch, ClientNet, Common, Task, load
from fedmrl.models import Split


@fedmrl.register
class FedProx(fedmrl.WeightSharing):
    """The whole model is averaged, and a proximal term keeps each client near the model it received."""

    name = "fedprox"
    title = "FedProx"
    colour = "#8a5a00"
    shares = ("local",)

    mu: Annotated[float, Field(ge=0)] = Field(0.01, description="weight of the proximal term")

    def check(self, clients: Sequence[Split], labels: Sequence[str]) -> None:
        """Raises `UserError` unless all models have the same shape."""
        shapes = [{name: tensor.shape for name, tensor in model.state_dict().items()} for model in clients]
        for client, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise fedmrl.UserError(
                    f"fedprox averages whole models, and client 0 has {labels[0]} where client {client} has {labels[client]}; "
                    "give all the same, as with models.local = 'homogeneous'"
                )

    def build(self, local: Split, task: Task) -> ClientNet:
        """The client's model, and a copy of the model it received."""
        return ClientNet({"local": local, "sent": deepcopy(local)})

    def new_shared(self, common: Common) -> dict[str, nn.Module]:
        """The initial model; if all models are equal, the small one is, too."""
        return {"local": common.small_model()}

    def receive(self, net: ClientNet, content: Mapping[str, Tensor]) -> None:
        """Replaces the model and the copy by the server's."""
        load(net, content)
        load(net, {name.replace("local.", "sent.", 1): tensor for name, tensor in content.items()})

    def loss(self, net: ClientNet, batch: Batch) -> Tensor:
        """CE(local) + μ/2 · the squared distance to the received model."""
        pairs = zip(net.local.parameters(), net.sent.parameters(), strict=True)
        distance = sum((own - sent.detach()).square().sum() for own, sent in pairs)
        return batch.mean(F.cross_entropy(net.local(batch.x), batch.y_B, reduction="none")) + self.mu / 2 * distance

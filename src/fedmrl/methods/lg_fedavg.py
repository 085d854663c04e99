"""LG-FedAvg (Liang et al., 2020): private extractors under one shared header."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from fedmrl.errors import UserError
from fedmrl.methods.base import Batch, ClientNet, Common, WeightSharing, cross_entropy
from fedmrl.models import Split


class LGFedAvg(WeightSharing):
    """Only the header is averaged, so extractors may differ; there is no pretraining."""

    name: ClassVar[str] = "lg-fedavg"
    title: ClassVar[str] = "LG-FedAvg"
    summary: ClassVar[str] = "the prediction header is averaged, the extractor stays"
    shares: ClassVar[tuple[str, ...]] = ("local.header",)

    def check(self, clients: Sequence[Split], labels: Sequence[str]) -> None:
        """Raises `UserError` unless all headers have the same shape."""
        shapes = [[list(p.shape) for p in model.header.parameters()] for model in clients]
        for client, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise UserError(
                    f"lg-fedavg averages headers, and client 0 ({labels[0]}) has one of shape {_shown(shapes[0])} where client "
                    f"{client} ({labels[client]}) has {_shown(shape)}; give all models the same representation dimension"
                )

    def new_shared(self, common: Common) -> dict[str, nn.Module]:
        """A header of the local models' shape."""
        if common.header is None:
            raise UserError("lg-fedavg averages headers that are linear layers, and client 0's is not; end it in an nn.Linear")
        return {"local.header": nn.Linear(common.header.dim, common.classes, common.header.bias)}

    def loss(self, net: ClientNet, batch: Batch) -> Tensor:
        """CE(local), extractor and header trained together."""
        return batch.mean(cross_entropy(net.local(batch.x), batch.y_B))


def _shown(shapes: list[list[int]]) -> str:
    return str(shapes[0]) if len(shapes) > 1 else f"{shapes[0]} without a bias"

"""Standalone: the baseline without federation."""

from typing import ClassVar

from torch import Tensor

from fedmrl.methods.base import Batch, ClientNet, Method, cross_entropy


class Standalone(Method):
    """Each client trains its own model on its own data, in the rounds in which it is sampled."""

    name: ClassVar[str] = "standalone"
    title: ClassVar[str] = "Standalone"
    summary: ClassVar[str] = "each client trains alone; nothing is sent"

    def loss(self, net: ClientNet, batch: Batch) -> Tensor:
        """CE(local)."""
        return batch.mean(cross_entropy(net.local(batch.x), batch.y_B))

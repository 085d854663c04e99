"""FedAPEN (Qin et al., 2023): mutual learning, with an ensemble whose balance each client learns."""

from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedmrl.errors import UserError
from fedmrl.methods.base import Batch, ClientNet, Common, Task, WeightSharing, cross_entropy, divergence
from fedmrl.models import Split
from fedmrl.training import Phase, Training


class Balance(nn.Module):
    """λ, the local model's share of the ensemble."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(0.5))


class FedAPEN(WeightSharing):
    """Local and small teach each other and predict as an ensemble; its λ is learned on held-out training data."""

    name: ClassVar[str] = "fedapen"
    title: ClassVar[str] = "FedAPEN"
    summary: ClassVar[str] = "mutual learning with a shared small model, and a learned ensemble of both"
    parts: ClassVar[tuple[str, ...]] = ("local", "small")
    shares: ClassVar[tuple[str, ...]] = ("small",)

    adaptability: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="share of a client's training data that only λ learns from"
    )
    balance_lr: Annotated[float, Field(gt=0)] = Field(1e-3, description="learning rate of λ")
    balance_epochs: Annotated[int, Field(ge=1)] = Field(10, description="passes over that share when small arrives")
    ensemble: Literal["logits", "probabilities"] = Field("logits", description="the outputs that λ mixes")

    @property
    def modes(self) -> tuple[str, ...]:
        """The ensemble, or one of its two models."""
        return ("ensemble", "local", "small")

    def build(self, local: Split, task: Task) -> ClientNet:
        """Local, small and the balance λ."""
        return ClientNet({"local": local, "small": task.small_model(), "balance": Balance()})

    def new_shared(self, common: Common) -> dict[str, nn.Module]:
        """The small model."""
        return {"small": common.small_model()}

    def subsets(self, samples: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Holds out a random share, of at least one sample, for λ."""
        if samples < 2:
            raise UserError(f"fedapen holds out training data, and a client has only {samples} samples; it needs 2 or more")
        order = rng.permutation(samples)
        cut = min(max(1, round(self.adaptability * samples)), samples - 1)
        return {"adaptability": np.sort(order[:cut]), "train": np.sort(order[cut:])}

    def phases(self, training: Training, earlier: int) -> tuple[Phase, ...]:
        """First λ on the held-out data with fixed models (except in a client's first round), then the models with fixed λ."""
        adapt = Phase(
            self.ensemble_loss,
            {"balance": self.balance_lr},
            epochs=self.balance_epochs,
            subset="adaptability",
            bounds={"balance.value": (0.0, 1.0)},
        )
        models = training.phase(self.loss, self.parts)
        return (adapt, models) if earlier else (models,)

    def ensemble_loss(self, net: ClientNet, batch: Batch) -> Tensor:
        """CE of the ensemble."""
        return batch.mean(cross_entropy(self.mix(net, net.local(batch.x), net.small(batch.x)), batch.y_B))

    def loss(self, net: ClientNet, batch: Batch) -> Tensor:
        """CE(local) + CE(small) + KL(small‖local) + KL(local‖small) + CE(ensemble)."""
        local_BC, small_BC = net.local(batch.x), net.small(batch.x)
        return batch.mean(
            cross_entropy(local_BC, batch.y_B)
            + cross_entropy(small_BC, batch.y_B)
            + divergence(small_BC, local_BC)
            + divergence(local_BC, small_BC)
            + cross_entropy(self.mix(net, local_BC, small_BC), batch.y_B)
        )

    def mix(self, net: ClientNet, local_BC: Tensor, small_BC: Tensor) -> Tensor:
        """The ensemble's logits."""
        share: Tensor = net.balance.value
        if self.ensemble == "logits":
            return share * local_BC + (1 - share) * small_BC
        # Log-probabilities are logits whose softmax is the probabilities.
        log_local_BC, log_small_BC = F.log_softmax(local_BC, dim=-1), F.log_softmax(small_BC, dim=-1)
        tiny = torch.finfo(local_BC.dtype).tiny
        return (share * log_local_BC.exp() + (1 - share) * log_small_BC.exp()).clamp(min=tiny).log()

    def predict(self, net: ClientNet, x: Tensor, mode: str) -> Tensor:
        """Predicts by the ensemble, or by one of its two models."""
        if mode == "ensemble":
            return self.mix(net, net.local(x), net.small(x))
        return super().predict(net, x, mode)

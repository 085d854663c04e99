"""FedMRL (Yi et al., NeurIPS 2024): a small shared model fused with each client's own, learned at two granularities.

The paper's names: θ is `small`, ω is `local`, φ is `projector`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedmrl.errors import UserError
from fedmrl.methods.base import Batch, ClientNet, Common, Task, WeightSharing, cross_entropy
from fedmrl.models import Split
from fedmrl.training import Phase, Training

LearningRate = Annotated[float, Field(gt=0)] | None


class FedMRL(WeightSharing):
    """Only the small model is averaged; the client's own model and its projector stay private."""

    name: ClassVar[str] = "fedmrl"
    title: ClassVar[str] = "FedMRL"
    summary: ClassVar[str] = "a shared small model's representation is fused with the local one, learned at two sizes"
    parts: ClassVar[tuple[str, ...]] = ("local", "small", "projector")
    shares: ClassVar[tuple[str, ...]] = ("small",)

    d1: Annotated[int, Field(ge=1, le=100_000)] = Field(100, description="the small model's representation dimension")
    m_small: Annotated[float, Field(ge=0)] = Field(1.0, description="weight of the small header's loss")
    m_local: Annotated[float, Field(ge=0)] = Field(1.0, description="weight of the local header's loss")
    mrl: bool = Field(True, description="learn at two granularities; false is the paper's ablation")
    header: Literal["own", "shared"] = Field(
        "own", description="shared (MRL-E): the local header's first d1 columns read the coarse representation"
    )
    projector: Literal["linear", "mlp"] = Field("linear", description="one linear layer, or two with a ReLU between them")
    lr_small: LearningRate = Field(None, description="learning rate of the small model, if not training.lr")
    lr_local: LearningRate = Field(None, description="learning rate of the local model, if not training.lr")
    lr_projector: LearningRate = Field(None, description="learning rate of the projector, if not training.lr")

    @model_validator(mode="after")
    def _variants_fit(self) -> Self:
        if not self.mrl and self.header == "shared":
            raise ValueError("header is 'shared', which needs two granularities, but mrl is false")
        return self

    @property
    def modes(self) -> tuple[str, ...]:
        """The paper's four inference models, without those that a variant lacks."""
        return (
            "mix-large",
            *(["mix-small"] if self.mrl else []),
            *(["single-small"] if self._small_has_header else []),
            "single-large",
        )

    @property
    def _small_has_header(self) -> bool:
        return self.mrl and self.header == "own"

    def check(self, clients: Sequence[Split], labels: Sequence[str]) -> None:
        """Raises `UserError` if a client's representation is smaller than d1, as the coarse one is cut from it."""
        least = min(range(len(clients)), key=lambda client: clients[client].dim)
        if self.d1 > clients[least].dim:
            raise UserError(
                f"method.d1 is {self.d1}, more than client {least}'s representation ({clients[least].dim}, "
                f"{labels[least]}); choose 1 to {clients[least].dim}"
            )

    def build(self, local: Split, task: Task) -> ClientNet:
        """Local, small, and a projector to the client's dimension."""
        return ClientNet({"local": local, **self.new_shared(task), "projector": self._new_projector(local.dim)})

    def new_shared(self, common: Common) -> dict[str, nn.Module]:
        """The small model with representation dimension d1, without its header if no mode uses it."""
        small = common.small_model(self.d1)
        if not self._small_has_header:
            small.header = nn.Identity()
        return {"small": small}

    def _new_projector(self, d2: int) -> nn.Module:
        if self.projector == "linear":
            return nn.Linear(self.d1 + d2, d2)
        return nn.Sequential(nn.Linear(self.d1 + d2, d2), nn.ReLU(), nn.Linear(d2, d2))

    def phases(self, training: Training, earlier: int) -> tuple[Phase, ...]:
        """One phase, in which parts may have their own learning rates."""
        phase = training.phase(self.loss, self.parts)
        own = {"local": self.lr_local, "small": self.lr_small, "projector": self.lr_projector}
        rates = {part: own[part] or rate for part, rate in phase.lr.items()}
        return (replace(phase, lr=rates),)

    def fuse(self, net: ClientNet, x: Tensor) -> Tensor:
        """Projects the concatenated generalised and personalised representations to local's dimension."""
        spliced = torch.cat([net.small.extractor(x), net.local.extractor(x)], dim=-1)
        fused_BD: Tensor = net.projector(spliced)
        return fused_BD

    def coarse_logits(self, net: ClientNet, fused_BD: Tensor) -> Tensor:
        """The logits from the first d1 numbers of the fused representation."""
        coarse_BD = fused_BD[..., : self.d1]
        if self.header == "shared":
            return F.linear(coarse_BD, net.local.header.weight[:, : self.d1], net.local.header.bias)
        logits_BC: Tensor = net.small.header(coarse_BD)
        return logits_BC

    def loss(self, net: ClientNet, batch: Batch) -> Tensor:
        """m_small·CE(coarse) + m_local·CE(fine); small, local and projector all learn from the sum."""
        fused_BD = self.fuse(net, batch.x)
        fine = self.m_local * batch.mean(cross_entropy(net.local.header(fused_BD), batch.y_B))
        if not self.mrl:
            return fine
        return self.m_small * batch.mean(cross_entropy(self.coarse_logits(net, fused_BD), batch.y_B)) + fine

    def predict(self, net: ClientNet, x: Tensor, mode: str) -> Tensor:
        """Predicts by one of the paper's four inference models."""
        logits_BC: Tensor
        if mode == "mix-small":
            logits_BC = self.coarse_logits(net, self.fuse(net, x))
        elif mode == "single-small":
            logits_BC = net.small(x)
        elif mode == "single-large":
            logits_BC = net.local(x)
        else:
            logits_BC = net.local.header(self.fuse(net, x))
        return logits_BC

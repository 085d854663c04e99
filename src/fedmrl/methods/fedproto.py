"""FedProto (Tan et al., 2022): clients exchange only the mean representation of each class."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedmrl.aggregation import MEAN, Aggregation
from fedmrl.errors import UserError
from fedmrl.messages import MessageForm, Tensors, Upload, UpTo
from fedmrl.methods.base import Batch, ClientNet, Common, Method, Round, Task, cross_entropy
from fedmrl.methods.by_class import keep_uploads, means, rows_form, write_rows
from fedmrl.models import Split
from fedmrl.training import Phase, Sums, Training


class FedProto(Method):
    """A client's representations of a class are pulled towards the class's global prototype."""

    name: ClassVar[str] = "fedproto"
    title: ClassVar[str] = "FedProto"
    summary: ClassVar[str] = "clients share the mean representation of each class"
    hears_server: ClassVar[bool] = True
    records_every_mode: ClassVar[bool] = True

    prototype_weight: Annotated[float, Field(ge=0)] = Field(1.0, description="λ, weight of the distance to prototypes")
    distance: Literal["sample", "class-mean"] = Field(
        "sample", description="mean square over samples (authors' code), or L2 of each class's batch mean (paper)"
    )
    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weights of prototypes: by their samples, or uniform"
    )
    keep: Literal["latest", "round"] = Field(
        "latest", description="the server averages each client's latest upload, or the last round's only"
    )

    @property
    def modes(self) -> tuple[str, ...]:
        """The local model's header, or the nearest global prototype."""
        return ("header", "prototype")

    def check(self, clients: Sequence[Split], labels: Sequence[str]) -> None:
        """Raises `UserError` unless all representations have the same dimension."""
        for client, model in enumerate(clients):
            if model.dim != clients[0].dim:
                raise UserError(
                    f"fedproto averages representations, and client 0 ({labels[0]}) has {clients[0].dim} dimensions where "
                    f"client {client} ({labels[client]}) has {model.dim}; give all models the same"
                )

    def upload_form(self, common: Common, start: Tensors, dtype: torch.dtype) -> MessageForm:
        """A prototype for each class that the client has, with counts if weighted by samples."""
        width = common.header.dim if common.header else UpTo("dimensions", 2**20)
        return [[rows_form("prototypes", width, common.classes, dtype, counts=self.weighting == "samples")]]

    def answer_form(self, common: Common, start: Tensors, dtype: torch.dtype) -> MessageForm:
        """A prototype for each class that somebody has; nothing, if there are none yet."""
        uploaded = self.upload_form(common, start, dtype)[0][0]
        return [[{}, {name: form for name, form in uploaded.items() if name != "counts"}]]

    def build(self, local: Split, task: Task) -> ClientNet:
        """Local, with the last received prototypes and a mask of the client's classes."""
        kept = {
            "prototypes_CD": torch.zeros(task.classes, local.dim),
            "known_C": torch.zeros(task.classes, dtype=torch.bool),
            "held_C": task.held_C.clone(),
        }
        return ClientNet({"local": local}, kept)

    def receive(self, net: ClientNet, content: Mapping[str, Tensor]) -> None:
        """Replaces the prototypes."""
        write_rows(net.prototypes_CD, net.known_C, content, "prototypes")

    def phases(self, training: Training, earlier: int) -> tuple[Phase, ...]:
        """One phase, whose last epoch yields the prototypes."""
        return (replace(training.phase(self.loss, self.parts), sums_of="last epoch"),)

    def loss(self, net: ClientNet, batch: Batch) -> tuple[Tensor, Sums]:
        """CE(local) + λ·distance to the prototypes; a class without a prototype adds zero."""
        rep_BD = net.local.extractor(batch.x)
        logits_BC = net.local.header(rep_BD)
        labels_BC = batch.labels(logits_BC.shape[-1], like=rep_BD)
        sums = dict(zip(("prototypes", "counts"), batch.by_class(rep_BD, logits_BC.shape[-1]), strict=True))
        distance = self._by_sample if self.distance == "sample" else self._by_class
        ce = batch.mean(cross_entropy(logits_BC, batch.y_B))
        return ce + self.prototype_weight * distance(net, batch, rep_BD, labels_BC), sums

    def _by_sample(self, net: ClientNet, batch: Batch, rep_BD: Tensor, labels_BC: Tensor) -> Tensor:
        gap_B: Tensor = (rep_BD - net.prototypes_CD[batch.y_B]).square().sum(dim=-1) / net.local.width
        return batch.mean(gap_B * net.known_C[batch.y_B])

    def _by_class(self, net: ClientNet, batch: Batch, rep_BD: Tensor, labels_BC: Tensor) -> Tensor:
        count_C = labels_BC.sum(dim=0)
        mean_CD = labels_BC.T @ rep_BD / count_C.clamp(min=1)[:, None]
        square_C = (mean_CD - net.prototypes_CD).square().sum(dim=-1)
        # A square root has no gradient at 0, so classes without a distance take it of 1, then multiply by 0.
        measured_C: Tensor = net.known_C & (count_C > 0) & (square_C > 0)
        return (torch.where(measured_C, square_C, 1.0).sqrt() * measured_C).sum()

    def upload(self, net: ClientNet, sums: Sums, round_: Round) -> Tensors:
        """The last epoch's mean representation for each class that the client has, with counts if weighted by samples."""
        classes = sums["counts"].nonzero().squeeze(1)
        counts = sums["counts"][classes]
        content = {"classes": classes, "prototypes": sums["prototypes"][classes] / counts[:, None]}
        return content | ({"counts": counts} if self.weighting == "samples" else {})

    def aggregate(self, server: Tensors, uploads: Sequence[Upload], round_: Round, rule: Aggregation = MEAN) -> Tensors:
        """Keeps each client's latest upload, in the order of clients."""
        return keep_uploads({} if self.keep == "round" else server, uploads, "prototypes")

    def answer(self, server: Tensors, client: int, since: int | None) -> Tensors:
        """The global prototypes, the mean over the clients that have a class, the same for all clients."""
        if not server:
            return {}
        dtype = next(tensor.dtype for name, tensor in server.items() if name.endswith("/prototypes"))
        return means(server["sum"], server["weight"], "prototypes", dtype)

    def predict(self, net: ClientNet, x: Tensor, mode: str) -> Tensor:
        """Predicts by the header, or by the nearest global prototype of the client's classes."""
        rep_BD = net.local.extractor(x)
        if mode == "header":
            logits_BC: Tensor = net.local.header(rep_BD)
            return logits_BC
        # |r - p|² without |r|², which is equal for all classes: this needs no array of batch × classes × dimensions.
        distance_BC = net.prototypes_CD.square().sum(dim=-1) - 2 * rep_BD @ net.prototypes_CD.T
        return torch.where(net.known_C & net.held_C, -distance_BC, -torch.inf)

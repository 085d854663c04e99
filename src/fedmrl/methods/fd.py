"""FD (Jeong et al., 2018): clients exchange only their mean outputs for each class."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedmrl.aggregation import MEAN, Aggregation
from fedmrl.messages import MessageForm, Tensors, Upload
from fedmrl.methods.base import Batch, ClientNet, Common, Method, Round, Task, cross_entropy
from fedmrl.methods.by_class import keep_uploads, means, rows_form, weighted_rows, write_rows
from fedmrl.models import Split
from fedmrl.training import Sums


class FD(Method):
    """Federated distillation: a client's outputs for a class are pulled towards the other clients' mean."""

    name: ClassVar[str] = "fd"
    title: ClassVar[str] = "FD"
    summary: ClassVar[str] = "clients learn from the others' mean outputs for each class"

    gamma: Annotated[float, Field(ge=0)] = Field(1.0, description="weight of the others' outputs")
    keep: Literal["latest", "round"] = Field(
        "latest", description="the server averages each client's latest upload, or the last round's only"
    )

    def upload_form(self, common: Common, start: Tensors, dtype: torch.dtype) -> MessageForm:
        """A row of outputs for each class that the client has."""
        return [[rows_form("outputs", common.classes, common.classes, dtype, counts=False)]]

    def answer_form(self, common: Common, start: Tensors, dtype: torch.dtype) -> MessageForm:
        """A row of outputs for each class that others have; nothing, if there are none yet."""
        return [[{}, *self.upload_form(common, start, dtype)[0]]]

    def build(self, local: Split, task: Task) -> ClientNet:
        """Local, with the last received targets."""
        C = task.classes
        return ClientNet({"local": local}, kept={"targets_CC": torch.zeros(C, C), "known_C": torch.zeros(C, dtype=torch.bool)})

    def receive(self, net: ClientNet, content: Mapping[str, Tensor]) -> None:
        """Replaces the targets."""
        write_rows(net.targets_CC, net.known_C, content, "outputs")

    def loss(self, net: ClientNet, batch: Batch) -> tuple[Tensor, Sums]:
        """CE(local) + γ·cross-entropy to the target of the sample's class; a class without a target adds zero."""
        logits_BC = net.local(batch.x)
        log_p_BC = F.log_softmax(logits_BC, dim=-1)
        towards_B = -(net.targets_CC[batch.y_B] * log_p_BC).sum(dim=-1) * net.known_C[batch.y_B]
        sums = dict(zip(("outputs", "counts"), batch.by_class(log_p_BC.exp(), logits_BC.shape[-1]), strict=True))
        return batch.mean(cross_entropy(logits_BC, batch.y_B) + self.gamma * towards_B), sums

    def upload(self, net: ClientNet, sums: Sums, round_: Round) -> Tensors:
        """The mean softmax output in training, for each class that the client has."""
        classes = sums["counts"].nonzero().squeeze(1)
        return {"classes": classes, "outputs": sums["outputs"][classes] / sums["counts"][classes, None]}

    def aggregate(self, server: Tensors, uploads: Sequence[Upload], round_: Round, rule: Aggregation = MEAN) -> Tensors:
        """Keeps each client's latest upload, in the order of clients."""
        return keep_uploads({} if self.keep == "round" else server, uploads, "outputs")

    def answer(self, server: Tensors, client: int, since: int | None) -> Tensors:
        """The unweighted mean over the other clients, for the classes of this client's latest upload (all, if it has none)."""
        if not server:
            return {}
        sums_CC, count_C = server["sum"], server["weight"]
        dtype = next(tensor.dtype for name, tensor in server.items() if name.endswith("/outputs"))
        if f"{client}/classes" in server:
            own = {name: server[f"{client}/{name}"] for name in ("classes", "outputs")}
            own_CC, own_C = weighted_rows(own, "outputs", len(count_C))
            sums_CC, count_C = sums_CC - own_CC, torch.where(own_C > 0, count_C - own_C, 0)
        return means(sums_CC, count_C, "outputs", dtype)

"""FedKD (Wu et al., 2022): mutual distillation with a small model whose updates are sent as truncated SVDs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedmrl.aggregation import MEAN, Aggregation
from fedmrl.messages import Choice, MessageForm, Size, TensorForm, Tensors, Upload, UpTo, copy, form_of, size
from fedmrl.methods.base import Batch, ClientNet, Common, Round, Task, WeightSharing, cross_entropy, divergence, load, pick
from fedmrl.models import Split
from fedmrl.training import Sums


class FedKD(WeightSharing):
    """Local and small teach each other by outputs and representations; clients send small's update, factored by SVD."""

    name: ClassVar[str] = "fedkd"
    title: ClassVar[str] = "FedKD"
    summary: ClassVar[str] = "mutual distillation with a shared small model, its updates sent compressed"
    parts: ClassVar[tuple[str, ...]] = ("local", "small", "bridge")
    shares: ClassVar[tuple[str, ...]] = ("small",)
    records_every_mode: ClassVar[bool] = True

    energy_start: Annotated[float, Field(gt=0, lt=1)] = Field(0.95, description="energy that the factors keep at first")
    energy_end: Annotated[float, Field(gt=0, lt=1)] = Field(0.98, description="energy that the factors keep at the end")

    @property
    def modes(self) -> tuple[str, ...]:
        """The client's own model predicts; the small one is recorded, too."""
        return ("local", "small")

    def upload_form(self, common: Common, start: Tensors, dtype: torch.dtype) -> MessageForm:
        """Of each tensor of small its change: whole, or as factors if these are smaller, or nothing."""
        return [factored_form(name, tensor) for name, tensor in pick(start, ["small"]).items()]

    def answer_form(self, common: Common, start: Tensors, dtype: torch.dtype) -> MessageForm:
        """The whole small model, or the changes that the client missed, by round."""
        of_round = [
            [{f"answer/*/{name}": form for name, form in choice.items()} for choice in group]
            for group in self.upload_form(common, start, dtype)
        ]
        return [[{}, form_of(pick(start, ["small"]))], *of_round]

    def build(self, local: Split, task: Task) -> ClientNet:
        """Local, small, W_h (`bridge`) between their representations, and small before local training."""
        small = task.small_model()
        bridge = nn.Linear(small.dim, local.dim, bias=False)
        return ClientNet({"local": local, "small": small, "bridge": bridge, "before": deepcopy(small)})

    def loss(self, net: ClientNet, batch: Batch) -> Tensor:
        """CE(local) + CE(small) + w·(KL(small‖local) + KL(local‖small) + MSE(local rep, W_h·small rep)), w = 1/(CE + CE)."""
        local_rep_BD, small_rep_BD = net.local.extractor(batch.x), net.small.extractor(batch.x)
        local_BC, small_BC = net.local.header(local_rep_BD), net.small.header(small_rep_BD)
        ce = batch.mean(cross_entropy(local_BC, batch.y_B)) + batch.mean(cross_entropy(small_BC, batch.y_B))
        mutual = batch.mean(divergence(small_BC, local_BC) + divergence(local_BC, small_BC))
        hidden = batch.mean((local_rep_BD - net.bridge(small_rep_BD)).square().sum(dim=-1) / net.local.width)
        # Detached: the gradient of w would increase the cross-entropies where the distillation terms are large.
        weight = 1 / ce.detach().clamp(min=1e-3)
        return ce + weight * (mutual + hidden)

    def energy(self, round_: Round) -> float:
        """The share of the squared singular values to keep in this round."""
        return self.energy_start + (self.energy_end - self.energy_start) * round_.progress

    def receive(self, net: ClientNet, content: Mapping[str, Tensor]) -> None:
        """Replaces small by the whole model received, or adds the missed answers to it in order."""
        small = pick(content, ["small"]) or renamed(pick(net.state_dict(), ["before"]), "before", "small")
        for _, answer in sorted(answers_in(content).items()):
            small = plus(small, rebuild(answer, small))
        load(net, small | renamed(small, "small", "before"))

    def upload(self, net: ClientNet, sums: Sums, round_: Round) -> Tensors:
        """The change of small in the round's local training."""
        before = renamed(pick(net.state_dict(), ["before"]), "before", "small")
        return {name: after.detach() - before[name] for name, after in self.shared(net).items()}

    def encode(self, uploads: Sequence[Tensors], round_: Round) -> list[Tensors]:
        """The factored updates."""
        return factored(uploads, self.energy(round_))

    def new_shared(self, common: Common) -> dict[str, nn.Module]:
        """The small model."""
        return {"small": common.small_model()}

    def start(self, common: Common) -> Tensors:
        """The initial small model, and no answers yet."""
        return super().start(common) | {"answers-since": torch.tensor(0)}

    def aggregate(self, server: Tensors, uploads: Sequence[Upload], round_: Round, rule: Aggregation = MEAN) -> Tensors:
        """Factors the mean update like an upload; the server adds what clients will rebuild, so all copies agree."""
        small = pick(server, ["small"])
        mean = self.combined([replace(upload, content=rebuild(upload.content, small)) for upload in uploads], rule)
        answer = factor(mean, self.energy(round_))
        answers = answers_in(server) | {round_.index: answer}
        # A client that missed answers larger than the whole small model gets that instead, so older answers can go.
        since, kept = round_.index + 1, Size()
        while since > int(server["answers-since"]) and kept.parameters < size(small).parameters:
            since -= 1
            kept += size(answers.get(since, {}))
        recent = {f"answer/{i}/{name}": t for i, content in answers.items() if i >= since for name, t in content.items()}
        return plus(small, rebuild(answer, small)) | recent | {"answers-since": torch.tensor(since)}

    def answer(self, server: Tensors, client: int, since: int | None) -> Tensors:
        """The answers that the client missed, or the whole small model if that is smaller or the client is new."""
        whole = copy(pick(server, ["small"]))
        if since is None or since < int(server["answers-since"]):
            return whole
        missed = {n: t for n, t in server.items() if n.startswith("answer/") and int(n.split("/")[1]) >= since}
        return copy(missed) if size(missed).parameters < size(whole).parameters else whole


def factor(update: Mapping[str, Tensor], energy: float) -> Tensors:
    """Factors each matrix into U, σ, V of the smallest rank that keeps more than `energy`, if that is smaller.

    Convolutions are matrices with a row per output channel; biases are sent unchanged, zero matrices not at all.

    >>> sorted(factor({"w": torch.ones(4, 5), "b": torch.ones(3), "none": torch.zeros(2, 2)}, 0.95))
    ['b', 'w:s', 'w:u', 'w:v']
    """
    return factored([update], energy)[0]


def factored(updates: Sequence[Mapping[str, Tensor]], energy: float) -> list[Tensors]:
    """Factors several updates of equal shapes, each by itself, in one batch."""
    contents: list[Tensors] = [{} for _ in updates]
    for name in updates[0] if updates else ():
        if updates[0][name].ndim < 2:
            for content, update in zip(contents, updates, strict=True):
                content[name] = update[name].clone()
            continue
        stacked = torch.stack([update[name].flatten(1) for update in updates])
        u, s, v = singular_values(stacked)
        kept = s.square().cumsum(dim=1)
        ranks = ((kept <= energy * kept[:, -1:]).sum(dim=1) + 1).tolist()
        zero = (kept[:, -1] == 0).tolist()
        rows, columns = stacked.shape[1:]
        for k, rank in enumerate(ranks):
            if zero[k]:
                continue
            if rank * (rows + columns + 1) < rows * columns:
                contents[k] |= copy({f"{name}:u": u[k, :, :rank], f"{name}:s": s[k, :rank], f"{name}:v": v[k, :rank]})
            else:
                contents[k][name] = updates[k][name].clone()
    return contents


def factored_form(name: str, tensor: Tensor) -> list[Choice]:
    """The forms in which `factored` sends a tensor's change."""
    whole = form_of({name: tensor})
    if tensor.ndim < 2:
        return [whole]
    rows, columns = tensor.flatten(1).shape
    rank = UpTo("rank", (rows * columns - 1) // (rows + columns + 1))
    shapes: dict[str, tuple[int | UpTo, ...]] = {"u": (rows, rank), "s": (rank,), "v": (rank, columns)}
    factors = {f"{name}:{part}": TensorForm(shape, tensor.dtype) for part, shape in shapes.items()}
    return [{}, whole, *([factors] if rank.most else [])]


def singular_values(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, σ and V of each matrix in a stack, from the eigenvectors of its smaller Gram matrix, which is fast on a GPU.

    This loses singular values below about 1e-8 of the largest, which are never kept.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    wide = (matrices.mT if tall else matrices).double()
    # Scaled by the largest entry, whose square could overflow.
    scale = wide.abs().amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)
    wide = wide / scale
    with _one_thread():
        left = torch.linalg.eigh(wide @ wide.mT).eigenvectors.flip(-1)
    right = left.mT @ wide
    s = torch.linalg.vector_norm(right, dim=-1)
    right = right / s.clamp(min=torch.finfo(s.dtype).tiny)[..., None]
    s = s * scale[:, :, 0]
    u, v = (right.mT, left.mT) if tall else (left, right)
    return u.to(matrices.dtype), s.to(matrices.dtype), v.to(matrices.dtype)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A context with one torch thread: more are slower on matrices of a few hundred rows, most of all on a busy CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def rebuild(content: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Tensors:
    """Rebuilds an update from its factors, in the shapes of `like`; tensors that were not sent are zero."""
    update: Tensors = {}
    for name, shape in ((name, tensor.shape) for name, tensor in like.items()):
        if f"{name}:u" in content:
            update[name] = ((content[f"{name}:u"] * content[f"{name}:s"]) @ content[f"{name}:v"]).reshape(shape)
        else:
            update[name] = content.get(name, torch.zeros_like(like[name]))
    return update


def plus(state: Mapping[str, Tensor], update: Mapping[str, Tensor]) -> Tensors:
    """The state after the update."""
    return {name: tensor + update[name] for name, tensor in state.items()}


def renamed(state: Mapping[str, Tensor], old: str, new: str) -> Tensors:
    """The state with another prefix."""
    return {new + name.removeprefix(old): tensor for name, tensor in state.items()}


def answers_in(content: Mapping[str, Tensor]) -> dict[int, Tensors]:
    """The answers in a message or in the server's state, by round."""
    answers: dict[int, Tensors] = {}
    for name, tensor in content.items():
        if name.startswith("answer/"):
            _, index, what = name.split("/")
            answers.setdefault(int(index), {})[what] = tensor
    return answers

"""What a method is: written once, for one client and its server; any engine can run it.

Legend of shapes: B batch, C classes, D representation.

Rules that let one loss serve every engine: no `.item()`, no `if` on a tensor's value, no in-place writes; every mean over
samples is `batch.mean`, and every mean over a representation divides by its model's `width`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedmrl.aggregation import MEAN, Aggregation, combine
from fedmrl.errors import UserError
from fedmrl.messages import Tensors, Upload, copy, write
from fedmrl.models import SharedSpec, Split
from fedmrl.table import Named
from fedmrl.training import Phase, Sums, Training


class Header(NamedTuple):
    """The form of a prediction header, a linear layer."""

    dim: int
    bias: bool


@dataclass(frozen=True)
class Common:
    """What the server and every client know of the federation before its first round."""

    shape: tuple[int, ...]
    classes: int
    small: SharedSpec
    header: Header | None
    """Of the local models, for methods that need all to have the same; None if it is no linear layer."""

    def small_model(self, dim: int | None = None) -> Split:
        """The model that all clients share, with another representation dimension if one is given."""
        return (self.small if dim is None else self.small.with_dim(dim)).build(self.shape, self.classes)


@dataclass(frozen=True)
class Task(Common):
    """What a client knows beside that when it builds its net."""

    held_C: Tensor
    """Which classes the client has in its training data."""


@dataclass(frozen=True)
class Round:
    """Which round this is, of how many."""

    index: int
    total: int

    @property
    def progress(self) -> float:
        """The share of training done when this round ends.

        >>> Round(0, 4).progress, Round(3, 4).progress
        (0.25, 1.0)
        """
        return (self.index + 1) / self.total


class ClientNet(nn.Module):
    """All that one client holds: its parts (models, projector), and what it keeps of messages, as buffers.

    A client is its net: what is not in its `state_dict` is not kept from round to round.
    """

    if TYPE_CHECKING:  # parts and buffers are the method's own

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, parts: Mapping[str, nn.Module], kept: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        for name, tensor in (kept or {}).items():
            self.register_buffer(name, tensor)
        self._frozen = {name for name, parameter in self.named_parameters() if not parameter.requires_grad}

    def learn(self, parts: Container[str]) -> None:
        """Let these parts learn; the others are fixed, in eval mode. What the user froze in a model stays frozen."""
        for name, part in self.named_children():
            part.train(name in parts)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.partition(".")[0] in parts and name not in self._frozen)


@dataclass(frozen=True)
class Batch:
    """Inputs and labels of one step; where a batch is padded, `mask_B` is 0 for the rows that are padding."""

    x: Tensor
    y_B: Tensor
    mask_B: Tensor | None = None

    def mean(self, values_B: Tensor) -> Tensor:
        """The mean over the samples.

        >>> Batch(torch.zeros(3, 1), torch.zeros(3), torch.tensor([1.0, 1.0, 0.0])).mean(torch.tensor([1.0, 2.0, 9.0]))
        tensor(1.5000)
        """
        if self.mask_B is None:
            return values_B.mean()
        return (values_B * self.mask_B).sum() / self.mask_B.sum().clamp(min=1)

    def labels(self, classes: int, like: Tensor) -> Tensor:
        """The labels as rows of zeros and a one, all zero where the row is padding."""
        onehot_BC = (self.y_B[:, None] == torch.arange(classes, device=like.device)).to(like.dtype)
        return onehot_BC if self.mask_B is None else onehot_BC * self.mask_B[:, None]

    def by_class(self, values_BD: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """For each class the sum of its samples' values, and how many samples it has; in 32 bits or more whatever the step is
        computed in, since they are added up over a whole round.

        >>> Batch(torch.zeros(3, 1), torch.tensor([1, 1, 0])).by_class(torch.tensor([[1.0], [2.0], [5.0]]), 2)
        (tensor([[5.],
                [3.]]), tensor([1., 2.]))
        """
        values_BD = values_BD.detach().to(torch.promote_types(values_BD.dtype, torch.float32))
        labels_BC = self.labels(classes, like=values_BD)
        with torch.autocast(values_BD.device.type, enabled=False):
            return labels_BC.T @ values_BD, labels_BC.sum(dim=0)


class Method(Named, ABC):
    """A federated method; its hyperparameters are its fields. The defaults share nothing: each client learns alone."""

    title: ClassVar[str]
    """What tables and figures call it; else the class's name."""
    summary: ClassVar[str]
    """What it does, in a few words; else the first line of the class's docstring."""
    colour: ClassVar[str | None] = None
    """Its colour in figures and on pages, as `#rrggbb`; one that no other method has is chosen if it does not say."""
    parts: ClassVar[tuple[str, ...]] = ("local",)
    """The parts of a client's net that learn."""
    shares: ClassVar[tuple[str, ...]] = ()
    """The parts that leave a client, as prefixes of their names in its state."""
    records_every_mode: ClassVar[bool] = False
    """Whether every way to predict is measured in each round, not the default alone."""
    hears_server: ClassVar[bool] = False
    """Whether predictions depend on what the server sent, so that `own` and `aggregated` accuracy differ."""
    averages: ClassVar[bool] = False
    """Whether the server combines what clients send by an aggregation rule, so that one can be chosen."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.title = cls.__dict__.get("title", cls.__name__)
        cls.summary = cls.__dict__.get("summary", (cls.__doc__ or "").strip().partition("\n")[0])
        if cls.colour is not None and not re.fullmatch("#[0-9a-fA-F]{6}", cls.colour):
            raise UserError(f"{cls.__name__}.colour is {cls.colour!r}; write it as in '#cf4a00'")

    @property
    def modes(self) -> tuple[str, ...]:
        """The ways to predict, the default first."""
        return ("local",)

    def check(self, clients: Sequence[Split], labels: Sequence[str]) -> None:
        """Refuse, in a sentence, local models that this method cannot serve. `labels` say what each client's is."""

    # ---- the client's side ----

    def build(self, local: Split, task: Task) -> ClientNet:
        """What one client holds, fresh."""
        return ClientNet({"local": local})

    def subsets(self, samples: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """How a client cuts its training data, once, as positions in it."""
        return {"train": np.arange(samples)}

    def receive(self, net: ClientNet, content: Mapping[str, Tensor]) -> None:
        """Take in what the server sent."""

    def phases(self, training: Training, earlier: int) -> tuple[Phase, ...]:
        """How the client trains in a round, having taken part in `earlier` ones."""
        return (training.phase(self.loss, self.parts),)

    @abstractmethod
    def loss(self, net: ClientNet, batch: Batch) -> Tensor | tuple[Tensor, Sums]:
        """What one client minimises on one batch; beside it, sums over the batch's samples if the upload needs them."""

    def upload(self, net: ClientNet, sums: Sums, round_: Round) -> Tensors:
        """What the client sends after training."""
        return {}

    def encode(self, uploads: Sequence[Tensors], round_: Round) -> list[Tensors]:
        """Each upload as it travels, if not as it is. Those of one machine come together: it may do them all at once."""
        return list(uploads)

    def predict(self, net: ClientNet, x: Tensor, mode: str) -> Tensor:
        """A score for each class, the highest wins; minus infinity for a class that cannot be predicted.

        A mode is the name of the part that predicts, if a method does not say otherwise.
        """
        logits_BC: Tensor = net.get_submodule(mode)(x)
        return logits_BC

    # ---- the server's side ----

    def start(self, common: Common) -> Tensors:
        """The server's state before the first round; what it draws depends on no client."""
        return {}

    def answer(self, server: Tensors, client: int, since: int | None) -> Tensors:
        """What the server sends to a client that last took part in round `since` (None: never)."""
        return {}

    def aggregate(self, server: Tensors, uploads: Sequence[Upload], round_: Round, rule: Aggregation = MEAN) -> Tensors:
        """The server's state after a round. What comes in is left as it is; `rule` is for methods that `average`."""
        return server


class WeightSharing(Method, ABC):
    """A method whose clients send the weights of one part and take their average."""

    hears_server: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="uploads weigh by training samples (n_k/n), or all alike"
    )

    def shared(self, net: ClientNet) -> Tensors:
        """The tensors of the net that are shared, alive (not copied)."""
        return {
            f"{part}.{name}": tensor for part in self.shares for name, tensor in net.get_submodule(part).state_dict().items()
        }

    def receive(self, net: ClientNet, content: Mapping[str, Tensor]) -> None:
        """The shared part is replaced by the server's."""
        load(net, content)

    def upload(self, net: ClientNet, sums: Sums, round_: Round) -> Tensors:
        """A copy of the shared part."""
        return copy(self.shared(net))

    @abstractmethod
    def new_shared(self, common: Common) -> Mapping[str, nn.Module]:
        """The parts that are shared, freshly drawn, by their names in a client's net."""

    def start(self, common: Common) -> Tensors:
        """The first shared part."""
        parts = self.new_shared(common).items()
        return copy({f"{part}.{name}": tensor for part, module in parts for name, tensor in module.state_dict().items()})

    def answer(self, server: Tensors, client: int, since: int | None) -> Tensors:
        """The shared part, the same for all."""
        return copy(server)

    def aggregate(self, server: Tensors, uploads: Sequence[Upload], round_: Round, rule: Aggregation = MEAN) -> Tensors:
        """The uploads, combined."""
        return self.combined(uploads, rule)

    def combined(self, uploads: Sequence[Upload], rule: Aggregation) -> Tensors:
        """The uploads as one, by the rule and `weighting`, in the order of clients whatever order they came in."""
        ordered = in_order(uploads)
        weights = [upload.samples if self.weighting == "samples" else 1 for upload in ordered]
        return combine(rule, [upload.content for upload in ordered], weights)


def in_order(uploads: Iterable[Upload]) -> list[Upload]:
    """The uploads by client number: sums in a fixed order are exact whatever order they came in."""
    return sorted(uploads, key=lambda upload: upload.client)


def pick(state: Mapping[str, Tensor], prefixes: Sequence[str]) -> Tensors:
    """The tensors whose names lie under one of the prefixes."""
    return {name: tensor for name, tensor in state.items() if any(name.startswith(f"{prefix}.") for prefix in prefixes)}


def load(net: nn.Module, content: Mapping[str, Tensor]) -> None:
    """Copy the named tensors into the net."""
    write([attrgetter(name)(net) for name in content], list(content.values()))


def cross_entropy(logits_BC: Tensor, y_B: Tensor) -> Tensor:
    """The cross-entropy of each sample."""
    return F.cross_entropy(logits_BC, y_B, reduction="none")


def divergence(teacher_BC: Tensor, student_BC: Tensor) -> Tensor:
    """KL(p‖q) of each sample, p from the teacher's logits without gradient, q from the student's: it pulls q to p.

    >>> divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([0.])
    """
    log_p_BC = F.log_softmax(teacher_BC.detach(), dim=-1)
    log_q_BC = F.log_softmax(student_BC, dim=-1)
    return (log_p_BC.exp() * (log_p_BC - log_q_BC)).sum(dim=-1)

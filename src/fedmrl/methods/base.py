"""The interface of a method, written once for one client and its server, and run by any engine.

Legend of shapes: B batch, C classes, D representation.

So that every engine can run it, a loss has no `.item()`, no `if` on a tensor's value and no in-place writes; every mean over
samples is `batch.mean`, and every mean over a representation divides by its model's `width`.
"""

import inspect
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
from fedmrl.errors import UserCodeError, UserError
from fedmrl.guard import described, guard
from fedmrl.messages import MessageForm, Tensors, Upload, copy, form_of, write
from fedmrl.methods.checks import CHECKS
from fedmrl.models import SharedSpec, Split
from fedmrl.table import Named
from fedmrl.training import Phase, Sums, Training


class Header(NamedTuple):
    """The shape of a prediction header, a linear layer."""

    dim: int
    bias: bool

    @classmethod
    def of(cls, model: Split) -> "Header | None":
        """The shape of a model's header, if it is a linear layer."""
        header = model.header
        return cls(header.in_features, header.bias is not None) if isinstance(header, nn.Linear) else None


@dataclass(frozen=True)
class Common:
    """What the server and all clients know before the first round."""

    shape: tuple[int, ...]
    classes: int
    small: SharedSpec
    header: Header | None
    """The local models' header, for methods that need all to be equal; None if it is not a linear layer."""

    def small_model(self, dim: int | None = None) -> Split:
        """Builds the shared model, with representation dimension `dim` if given."""
        if dim is None:
            return self.small.build(self.shape, self.classes)
        model = self.small.with_dim(dim)
        made = model.build(self.shape, self.classes)
        if made.dim != dim:
            raise UserError(
                f"the model {model.label!r} has a representation of {made.dim}, and its with_dim was asked for {dim}; mend it, "
                "or name another as models.small"
            )
        return made


@dataclass(frozen=True)
class Task(Common):
    """What one client knows when it builds its net."""

    held_C: Tensor
    """A mask of the classes in the client's training data."""


@dataclass(frozen=True)
class Round:
    """The current round, and the number of rounds."""

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
    """A client's parts (models, projector), and what it keeps of messages, as buffers.

    A client keeps only its net's `state_dict` from round to round.
    """

    if TYPE_CHECKING:  # each method defines its own parts and buffers

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, parts: Mapping[str, nn.Module], kept: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        for name, tensor in (kept or {}).items():
            self.register_buffer(name, tensor)
        self._frozen = {name for name, parameter in self.named_parameters() if not parameter.requires_grad}

    def learn(self, parts: Container[str]) -> None:
        """Makes these parts trainable and puts the others in eval mode; parameters that the user froze stay frozen."""
        for name, part in self.named_children():
            part.train(name in parts)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.partition(".")[0] in parts and name not in self._frozen)


@dataclass(frozen=True)
class Batch:
    """Inputs and labels of one step; `mask_B` is 0 for rows that are padding, if there are any."""

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
        """One-hot labels, all zero for rows that are padding."""
        onehot_BC = (self.y_B[:, None] == torch.arange(classes, device=like.device)).to(like.dtype)
        return onehot_BC if self.mask_B is None else onehot_BC * self.mask_B[:, None]

    def by_class(self, values_BD: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """The sum of the samples' values and the number of samples, by class, in 32 bits or more, as they add up over a round.

        >>> Batch(torch.zeros(3, 1), torch.tensor([1, 1, 0])).by_class(torch.tensor([[1.0], [2.0], [5.0]]), 2)
        (tensor([[5.],
                [3.]]), tensor([1., 2.]))
        """
        values_BD = values_BD.detach().to(torch.promote_types(values_BD.dtype, torch.float32))
        labels_BC = self.labels(classes, like=values_BD)
        with torch.autocast(values_BD.device.type, enabled=False):
            return labels_BC.T @ values_BD, labels_BC.sum(dim=0)


def _is_net(result: Any, *_: Any, **__: Any) -> str | None:
    if isinstance(result, ClientNet):
        return None
    return f"returns {described(result)}; it must return a fedmrl.methods.ClientNet"


class Method(Named, ABC):
    """A federated method; its fields are its hyperparameters. By default clients share nothing and learn alone."""

    title: ClassVar[str]
    """The name in tables and figures; by default the class's name."""
    summary: ClassVar[str]
    """A short description; by default the first line of the class's docstring."""
    colour: ClassVar[str | None] = None
    """The colour in figures and on pages, as `#rrggbb`; by default one that no other method has."""
    parts: ClassVar[tuple[str, ...]] = ("local",)
    """The parts of a client's net that learn."""
    shares: ClassVar[tuple[str, ...]] = ()
    """The parts that a client sends, as prefixes of names in its state."""
    records_every_mode: ClassVar[bool] = False
    """Whether each round records every mode, not only the default one."""
    hears_server: ClassVar[bool] = False
    """Whether predictions depend on what the server sent, so that `own` and `aggregated` accuracy differ."""
    averages: ClassVar[bool] = False
    """Whether the server combines uploads by an aggregation rule, so that recipes can choose one."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.title = cls.__dict__.get("title", cls.__name__)
        cls.summary = cls.__dict__.get("summary", (cls.__doc__ or "").strip().partition("\n")[0])
        if cls.colour is not None and not re.fullmatch("#[0-9a-fA-F]{6}", str(cls.colour)):
            raise UserError(f"{cls.__name__}.colour is {cls.colour!r}; write it as in '#cf4a00'")
        for name in ("parts", "shares"):
            if not isinstance(parts := getattr(cls, name), tuple) or not all(isinstance(part, str) and part for part in parts):
                raise UserError(f"{cls.__name__}.{name} is {parts!r}; it must be a tuple of names, as in ('local',)")
        if cls.summary == "":  # without a docstring
            cls.summary = cls.title
        checks = {**CHECKS, "build": _is_net}
        if cls.encode is Method.encode:  # engines encode uploads only for methods that define it
            del checks["encode"]
        guard(cls, "method", checks)

    @property
    def modes(self) -> tuple[str, ...]:
        """The ways to predict, the default first."""
        return ("local",)

    def check(self, clients: Sequence[Split], labels: Sequence[str]) -> None:
        """Raises `UserError` for local models that the method does not support; `labels` has each client's label."""

    # ---- what travels ----

    def upload_form(self, common: Common, start: Tensors, dtype: torch.dtype) -> MessageForm:
        """The form of an upload, where `start` is the server's initial state; by default nothing leaves a client.

        Messages that do not have the method's form are refused in federations over a network.
        """
        return ()

    def answer_form(self, common: Common, start: Tensors, dtype: torch.dtype) -> MessageForm:
        """The form of what the server sends; by default that of an upload."""
        return self.upload_form(common, start, dtype)

    # ---- the client's side ----

    def build(self, local: Split, task: Task) -> ClientNet:
        """Builds a client's net."""
        return ClientNet({"local": local})

    def subsets(self, samples: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Divides a client's training data, once, into named subsets of positions."""
        return {"train": np.arange(samples)}

    def receive(self, net: ClientNet, content: Mapping[str, Tensor]) -> None:
        """Stores what the server sent in the client's net."""

    def phases(self, training: Training, earlier: int) -> tuple[Phase, ...]:
        """The phases of a client's training in a round, after `earlier` earlier rounds."""
        return (training.phase(self.loss, self.parts),)

    @abstractmethod
    def loss(self, net: ClientNet, batch: Batch) -> Tensor | tuple[Tensor, Sums]:
        """A client's loss on a batch, with sums over the batch's samples if the upload needs them."""

    def upload(self, net: ClientNet, sums: Sums, round_: Round) -> Tensors:
        """The client's upload after training."""
        return {}

    def encode(self, uploads: Sequence[Tensors], round_: Round) -> list[Tensors]:
        """Encodes uploads for sending; one machine's come together, to be encoded in one batch."""
        return list(uploads)

    def predict(self, net: ClientNet, x: Tensor, mode: str) -> Tensor:
        """Scores for each class, of which the highest is predicted; minus infinity for classes that cannot be.

        By default, `mode` is the name of the part that predicts.
        """
        logits_BC: Tensor = net.get_submodule(mode)(x)
        return logits_BC

    # ---- the server's side ----

    def start(self, common: Common) -> Tensors:
        """The server's initial state, drawn independently of the clients."""
        return {}

    def answer(self, server: Tensors, client: int, since: int | None) -> Tensors:
        """What the server sends to a client that last took part in round `since` (None: never)."""
        return {}

    def aggregate(self, server: Tensors, uploads: Sequence[Upload], round_: Round, rule: Aggregation = MEAN) -> Tensors:
        """The server's state after a round, without changing the inputs; `rule` is for methods with `averages`."""
        return server


class WeightSharing(Method, ABC):
    """A method whose clients send the weights of one part and receive their average."""

    hears_server: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weights of uploads: by training samples (n_k/n), or uniform"
    )

    @property
    def sends_weights(self) -> bool:
        """Whether all messages are the shared weights as they are, and the server's state is their combination."""
        own, here = type(self), WeightSharing
        return (own.upload, own.encode, own.answer, own.aggregate, own.combined, own.shared) == (
            here.upload, here.encode, here.answer, here.aggregate, here.combined, here.shared
        )  # fmt: skip

    def upload_form(self, common: Common, start: Tensors, dtype: torch.dtype) -> MessageForm:
        """The shared part, whole."""
        return [[form_of(start)]]

    def shared(self, net: ClientNet) -> Tensors:
        """The shared tensors of the net, not copied."""
        return {
            f"{part}.{name}": tensor for part in self.shares for name, tensor in net.get_submodule(part).state_dict().items()
        }

    def receive(self, net: ClientNet, content: Mapping[str, Tensor]) -> None:
        """Replaces the shared part by the server's."""
        load(net, content)

    def upload(self, net: ClientNet, sums: Sums, round_: Round) -> Tensors:
        """A copy of the shared part."""
        return copy(self.shared(net))

    @abstractmethod
    def new_shared(self, common: Common) -> Mapping[str, nn.Module]:
        """New shared parts with initial weights, by their names in a client's net."""

    def start(self, common: Common) -> Tensors:
        """The initial shared part."""
        parts = self.new_shared(common).items()
        return copy({f"{part}.{name}": tensor for part, module in parts for name, tensor in module.state_dict().items()})

    def answer(self, server: Tensors, client: int, since: int | None) -> Tensors:
        """The shared part, the same for all."""
        return copy(server)

    def aggregate(self, server: Tensors, uploads: Sequence[Upload], round_: Round, rule: Aggregation = MEAN) -> Tensors:
        """The combined uploads."""
        return self.combined(uploads, rule)

    def combined(self, uploads: Sequence[Upload], rule: Aggregation) -> Tensors:
        """Combines the uploads by the rule and `weighting`, in the order of clients."""
        ordered = in_order(uploads)
        first = _form(ordered[0].content)
        for upload in ordered[1:]:
            if differing := sorted(dict(first.items() ^ _form(upload.content).items())):
                raise UserCodeError(
                    f"{self.name}: client {upload.client}'s upload differs from client {ordered[0].client}'s in "
                    f"{differing[0]}; uploads that are averaged must have equal names, shapes and types"
                )
        weights = [upload.samples if self.weighting == "samples" else 1 for upload in ordered]
        return combine(rule, [upload.content for upload in ordered], weights)


def _form(content: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in content.items()}


def declares_messages(method: Method) -> bool:
    """Whether the form of a method's messages is declared by the class that decides what they hold, or by one made from it."""

    def defined_at(name: str) -> int:
        """The place in the order of base classes of the one that defines a function; guards wrap inherited ones, too."""
        order = type(method).__mro__
        function = inspect.unwrap(getattr(type(method), name))
        return max(i for i, base in enumerate(order) if inspect.unwrap(getattr(base, name, object)) is function)

    decides = [name for name in ("upload", "encode", "shared") if hasattr(method, name)]
    return defined_at("upload_form") <= min(map(defined_at, decides)) and (
        defined_at("answer_form") <= defined_at("answer") or defined_at("upload_form") <= defined_at("answer")
    )


def in_order(uploads: Iterable[Upload]) -> list[Upload]:
    """The uploads by client number, so that sums do not depend on the order of arrival."""
    return sorted(uploads, key=lambda upload: upload.client)


def pick(state: Mapping[str, Tensor], prefixes: Sequence[str]) -> Tensors:
    """The tensors whose names start with one of the prefixes and a dot."""
    return {name: tensor for name, tensor in state.items() if any(name.startswith(f"{prefix}.") for prefix in prefixes)}


def load(net: nn.Module, content: Mapping[str, Tensor]) -> None:
    """Copies the named tensors into the net; raises `ValueError` for other shapes, which torch would broadcast."""
    targets = [attrgetter(name)(net) for name in content]
    for (name, tensor), target in zip(content.items(), targets, strict=True):
        if tensor.shape != target.shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, and the net's has {list(target.shape)}")
    write(targets, list(content.values()))


def cross_entropy(logits_BC: Tensor, y_B: Tensor) -> Tensor:
    """The cross-entropy of each sample."""
    return F.cross_entropy(logits_BC, y_B, reduction="none")


def divergence(teacher_BC: Tensor, student_BC: Tensor) -> Tensor:
    """KL(p‖q) of each sample, where p is the teacher's softmax without gradient and q the student's.

    >>> divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([0.])
    """
    log_p_BC = F.log_softmax(teacher_BC.detach(), dim=-1)
    log_q_BC = F.log_softmax(student_BC, dim=-1)
    return (log_p_BC.exp() * (log_p_BC - log_q_BC)).sum(dim=-1)

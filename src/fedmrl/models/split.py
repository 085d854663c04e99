"""A model as the paper sees it: a feature extractor and a prediction header."""

import copy
import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.memory import free_bytes, said
from fedmrl.table import Named


class Split(nn.Module):
    """A model in two parts: `header(extractor(x))`, with a representation of `dim` numbers between them.

    >>> model = Split(nn.Linear(4, 3), nn.Linear(3, 2), dim=3)
    >>> model(torch.zeros(5, 4)).shape
    torch.Size([5, 2])
    """

    # The representation's dimension as a tensor, which an engine may replace by each client's own when it pads
    # representations to a common width: what divides by it stays right.
    width: Tensor

    def __init__(self, extractor: nn.Module, header: nn.Module, dim: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.header = header
        self.dim = dim
        self.register_buffer("width", torch.tensor(float(dim)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.header(self.extractor(x))
        return logits


def split(model: nn.Module, last: str, example: Tensor) -> Split:
    """Cut any module into extractor and header at its last layer, named as in `named_modules()`.

    `example` is a batch of inputs: with it the cut is tried out, so that a layer that is not the last is refused.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> split(model, "2", torch.zeros(2, 4)).dim
    3
    """
    if not isinstance(model, nn.Module) or not isinstance(example, Tensor):
        raise UserError(f"split needs an nn.Module and a batch of inputs; it was given {_kind(model)} and {_kind(example)}")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = f"its layer {name!r}" if name else "it"
            raise UserError(
                f"{type(model).__name__} cannot be split: {where} is compiled by torch.jit, and cannot be copied for each "
                "client; leave it as the plain nn.Module that it was made from"
            )
    names = [name for name, _ in model.named_modules() if name]
    if last not in names:
        near = difflib.get_close_matches(str(last), names, n=1) or names[-1:]
        hint = f"; did you mean {near[0]!r}?" if near else "; it has no layers at all"
        raise UserError(f"{type(model).__name__} has no layer {last!r}{hint}")
    if any(is_lazy(parameter) for parameter in model.parameters()):  # it gets its shape, and numbers, from the first input
        _run(model, example)
    try:
        extractor = copy.deepcopy(model)
    except CODE_FAILS as error:
        raise UserError(
            f"{type(model).__name__} cannot be copied for each client ({cause(error)}); keep locks, open files and generators "
            "out of the module"
        ) from error
    header = extractor.get_submodule(last)
    if not isinstance(header, nn.Linear):
        raise UserError(
            f"{type(model).__name__} cannot be split at {last!r}: it is a {type(header).__name__}, and a header must be "
            "an nn.Linear; name the model's last linear layer"
        )
    parent, _, child = last.rpartition(".")
    setattr(extractor.get_submodule(parent), child, nn.Identity())
    return _checked(model, Split(extractor, header, header.in_features), last, example)


def _checked(model: nn.Module, cut: Split, last: str, example: Tensor) -> Split:
    """The cut model, once it has shown that it computes what the whole one does."""
    name, training = type(model).__name__, model.training
    whole = _run(model, example)
    cut.eval()
    try:
        with torch.no_grad():
            without = f"{name} cannot be split at {last!r}: without that layer it does not run"
            representation = _tried(cut.extractor, example, without)
            if representation.shape != (len(example), cut.dim):
                raise UserError(
                    f"{name} cannot be split at {last!r}: what comes before it has shape "
                    f"{list(representation.shape[1:])} a sample, expected [{cut.dim}]; name the model's last layer"
                )
            output = _tried(cut.header, representation, without)
            alike = output.shape == whole.shape and output.dtype == whole.dtype
            if not alike or not torch.allclose(output, whole, rtol=1e-4, atol=1e-5):
                raise UserError(
                    f"{name} cannot be split at {last!r}: other layers come after it or beside it; "
                    "name the layer that computes the model's output"
                )
    finally:
        cut.train(training)
    return cut


def _run(model: nn.Module, example: Tensor) -> Tensor:
    """The model's output as it predicts; nothing of it is changed."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _tried(model, example, f"{type(model).__name__} does not run on an input of shape {list(example.shape)}")
    finally:
        model.train(training)


def _tried(module: nn.Module, example: Tensor, sentence: str) -> Tensor:
    """The module's output; whatever its author's code raises becomes a sentence."""
    try:
        output = module(example)
        if not isinstance(output, Tensor):
            raise TypeError(f"it gives a {type(output).__name__}, not a tensor")
        if output.layout is not torch.strided:
            raise TypeError(f"it gives a tensor of layout {str(output.layout).removeprefix('torch.')}, not a dense one")
    except CODE_FAILS as error:
        raise UserError(f"{sentence} ({cause(error)})") from error
    return output


class _WithinMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, a tensor that does not fit into memory is refused before it is made.

    Linux hands out more memory than there is, and ends the process, without a word, when it is written to.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        sizes = args[0] if args and isinstance(args[0], list | tuple) else []  # of `empty`, `zeros`, `randn` and their like
        if sizes and all(isinstance(size, int) for size in sizes):
            needed = math.prod(sizes) * (given.get("dtype") or torch.get_default_dtype()).itemsize
            place = torch.device(given.get("device") or "cpu")
            # To ask what is free reads files, and is not worth it for what fits everywhere.
            if place.type == "cpu" and needed > _ALWAYS_FITS and needed > (free := free_bytes(place)):
                raise UserError(f"it needs {said(needed)} of memory for one tensor, and {said(free)} are free; make it smaller")
        return func(*args, **given)


_ALWAYS_FITS = 64 * 1024**2  # bytes


def _check_room(made: nn.Module) -> None:
    """Refuse a model that leaves no room for what training it takes beside it: its gradients and its new state."""
    tensors = [tensor for tensor in (*made.parameters(), *made.buffers()) if not is_lazy(tensor)]
    held = sum(tensor.numel() * tensor.itemsize for tensor in tensors)
    if held > _ALWAYS_FITS and 2 * held > (free := free_bytes(torch.device("cpu"))):
        raise UserError(
            f"it has {said(held)} of weights, and to train it takes {said(2 * held)} beside them, where {said(free)} are free; "
            "make it smaller"
        )


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


@runtime_checkable
class ModelSpec(Protocol):
    """A kind of local model: what it is called, and how a client makes one."""

    @property
    def label(self) -> str:
        """Its name in tables."""

    def build(self, shape: tuple[int, ...], classes: int) -> Split:
        """A new model, its weights drawn from torch's current state."""


class SharedSpec(ModelSpec, Protocol):
    """A kind of model that all clients can share: its size is known, and its representation may have any dimension."""

    def parameters(self, shape: tuple[int, ...], classes: int) -> int:
        """How many numbers it learns."""

    def with_dim(self, dim: int) -> "SharedSpec":
        """The same kind with another representation dimension."""


class Model(Named, ABC):
    """A kind of model that recipes can name; what it can be set to are its fields."""

    @property
    def label(self) -> str:
        """Its name in tables, with the fields that are not as they come."""
        changed = ", ".join(f"{field} = {value}" for field, value in self.model_dump(exclude_defaults=True).items())
        return f"{self.name} ({changed})" if changed else self.name

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> Split:
        """A new model for samples of this shape, its weights drawn from torch's current state."""

    def parameters(self, shape: tuple[int, ...], classes: int) -> int:
        """How many numbers it learns."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.build(shape, classes).parameters())

    def with_dim(self, dim: int) -> "Model":
        """The same kind with another representation dimension, as a model that clients share must have for some methods."""
        raise UserError(
            f"the model {self.name!r} has no with_dim, so it cannot get the representation dimension {dim} that the method "
            "wants of a shared model; give it one, or name another as models.small"
        )


@dataclass(frozen=True)
class OwnModel:
    """A model of one's own: any `nn.Module` that `make` returns, cut at its last layer.

    >>> spec = OwnModel("mlp", lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 2)), "3")
    >>> spec.build((3, 2, 2), classes=2).dim
    3
    """

    label: str
    make: Callable[[], nn.Module]
    last: str

    def __post_init__(self) -> None:
        if isinstance(self.make, nn.Module) or not callable(self.make):
            raise UserError(
                f"OwnModel {self.label!r}: make is {_kind(self.make)}; give a function that returns a new nn.Module, as in "
                "lambda: Net()"
            )
        if not isinstance(self.label, str) or not isinstance(self.last, str):
            raise UserError(f"OwnModel {self.label!r}: its label and the name of its last layer must be texts")

    def build(self, shape: tuple[int, ...], classes: int) -> Split:
        """A new model, its weights drawn from torch's current state."""
        example = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
        try:
            with _WithinMemory():  # type: ignore[no-untyped-call]
                made = self.make()
                if not isinstance(made, nn.Module):
                    raise UserError(f"make returns {_kind(made)}; it must return an nn.Module")
                _check_room(made)
                model = split(made, self.last, example)
        except UserError as error:
            raise UserError(f"model {self.label!r}: {error}") from error
        except CODE_FAILS as error:
            raise UserError(f"model {self.label!r} cannot be made ({cause(error)})") from error
        outputs = model.get_submodule("header").out_features
        if outputs != classes:
            raise UserError(f"model {self.label!r} gives {outputs} outputs, and the data has {classes} classes")
        return model

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
from fedmrl.guard import Check, described, guard, line
from fedmrl.memory import format_bytes, free_bytes
from fedmrl.table import Named


class Split(nn.Module):
    """A model in two parts: `header(extractor(x))`, with a representation of `dim` numbers between them.

    >>> model = Split(nn.Linear(4, 3), nn.Linear(3, 2), dim=3)
    >>> model(torch.zeros(5, 4)).shape
    torch.Size([5, 2])
    """

    # The representation's dimension as a tensor: an engine that pads representations to a common width replaces it by each
    # client's own, so that dividing by it stays correct.
    width: Tensor

    def __init__(self, extractor: nn.Module, header: nn.Module, dim: int) -> None:
        super().__init__()
        if isinstance(dim, bool) or not isinstance(dim, int) or not 0 < dim < 2**31:
            raise UserError(f"a Split's dim is {dim!r:.80}; it must be a whole number from 1, the size of its representation")
        self.extractor = extractor
        self.header = header
        self.dim = dim
        self.before: Before | None = None
        """What it was split from, if it was one module."""
        self.register_buffer("width", torch.tensor(float(dim)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.header(self.extractor(x))
        return logits

    def plain_state(self) -> dict[str, Tensor]:
        """The state by the names that the module had before it was split; else by the extractor's own, and `header`."""
        before = self.before or Before("header")
        state = {before.name(f"extractor.{name}"): tensor for name, tensor in self.extractor.state_dict().items()}
        own = self.header.state_dict()
        if before.one_logit:
            own = {name: tensor[1:] - tensor[:1] for name, tensor in own.items()}
        header = {before.name(f"header.{name}"): tensor for name, tensor in own.items()}
        return self.state_dict() if state.keys() & header.keys() else state | header


@dataclass(frozen=True)
class Before:
    """What a `Split` was before."""

    last: str
    """Its last layer."""
    prefix: str = ""
    """What splitting put before all its names."""
    bare: bool = False
    """Whether the last layer was all of it."""
    one_logit: bool = False
    """Whether the last layer had one output, where the header has two."""

    def name(self, name: str) -> str:
        """A tensor's name before."""
        part, _, rest = name.partition(".")
        whole = rest if part == "extractor" or self.bare else f"{self.last}.{rest}"
        return whole.removeprefix(self.prefix)


Output = str | int | Callable[[Any], Any]
"""Where a model's output has the logits: the key of a dict, the place in a tuple, or a function that takes the output."""


def split(
    model: nn.Module, last: str | None, example: Tensor, output: Output | None = None, classes: int | None = None
) -> Split:
    """Splits a module into extractor and header at its last layer, named as in `named_modules()`; None: it is looked for.

    `output` says where the logits are if the module returns a dict or a tuple. With two `classes`, a header of one logit is
    given a second one. Raises `UserError` unless the split model computes the same as the whole one on `example`, a batch of
    inputs.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> split(model, None, torch.zeros(2, 4)).dim
    3
    """
    _check_arguments(model, example, output, classes)
    named = type(model).__name__
    bare = isinstance(model, nn.Linear)
    if bare:  # its inputs are the representation
        model = nn.Sequential(nn.Flatten(), model)
    if output is not None:
        model = _Logits(model, output)
    if last is not None:
        last = _known(model, last, named)
    if any(is_lazy(parameter) for parameter in model.parameters()):  # the first input initialises them
        _run(model, example)
    if last is None:
        last = _last_layer(model, example, named)
    try:
        extractor = copy.deepcopy(model)
    except CODE_FAILS as error:
        raise UserError(
            f"{named} cannot be copied for each client ({cause(error)}); keep locks, open files and generators "
            "out of the module"
        ) from error
    header = extractor.get_submodule(last)
    if not isinstance(header, nn.Linear):
        raise UserError(
            f"{named} cannot be split at {_plain(last)!r}: it is a {type(header).__name__}, and a header must be "
            "an nn.Linear; name the model's last linear layer"
        )
    parent, _, child = last.rpartition(".")
    setattr(extractor.get_submodule(parent), child, nn.Identity())
    made = _checked(model, Split(extractor, header, header.in_features), last, example, named)
    made.before = Before(last, "model." if output is not None else "", bare, classes == 2 and header.out_features == 1)
    if made.before.one_logit:
        made.header = _two_logits(header)
    return made


def _check_arguments(model: Any, example: Any, output: Any, classes: Any) -> None:
    if not isinstance(model, nn.Module) or not isinstance(example, Tensor):
        raise UserError(f"split needs an nn.Module and a batch of inputs; it got {_kind(model)} and {_kind(example)}")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = f"its layer {name!r}" if name else "it"
            raise UserError(
                f"{type(model).__name__} cannot be split: {where} is compiled by torch.jit, and cannot be copied for each "
                "client; use the original nn.Module"
            )
    if isinstance(output, bool) or not (output is None or isinstance(output, str | int) or callable(output)):
        raise UserError(f"output is {output!r:.80}; give the key or place of the logits, or a function that takes them out")
    if classes is not None and type(classes) is not int:
        raise UserError(f"classes is {classes!r:.80}; it must be a whole number")


class _Logits(nn.Module):
    """A module whose output has the logits among other things."""

    def __init__(self, model: nn.Module, output: Output) -> None:
        super().__init__()
        self.model = model
        self.output = output

    def forward(self, x: Tensor) -> Any:
        """The logits."""
        whole = self.model(x)
        if callable(self.output):
            return self.output(whole)
        try:
            return whole[self.output]
        except (KeyError, IndexError, TypeError) as error:
            has = f"a dict with {', '.join(map(repr, whole))}" if isinstance(whole, dict) else _returned(whole)
            raise KeyError(f"output is {self.output!r}, and the model returns {has}") from error


def _returned(value: object) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else _kind(value)


def _plain(last: str) -> str:
    """A layer's name as its author knows it."""
    return last.removeprefix("model.") if last.startswith("model.") else last


def _known(model: nn.Module, last: str, named: str) -> str:
    """The full name of the layer that the user calls `last`."""
    prefix = "model." if isinstance(model, _Logits) else ""
    names = [name.removeprefix(prefix) for name, _ in model.named_modules() if name.removeprefix(prefix)]
    if not isinstance(last, str) or last not in names:
        near = difflib.get_close_matches(f"{last!s:.80}", names, n=1) or names[-1:]
        hint = f"; did you mean {near[0]!r}?" if near else "; it has no layers at all"
        raise UserError(f"{named} has no layer {last!r:.80}{hint}")
    return prefix + last


def _last_layer(model: nn.Module, example: Tensor, named: str) -> str:
    """The name of the linear layer whose output is the model's, found by running it once."""
    calls: list[tuple[str, Tensor]] = []
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]

    def note(name: str, found: Any) -> None:
        if isinstance(found, Tensor):
            calls.append((name, found.detach().clone()))

    handles = [
        module.register_forward_hook(lambda _module, _inputs, found, name=name: note(name, found)) for name, module in linear
    ]
    try:
        whole = _run(model, example)
    finally:
        for handle in handles:
            handle.remove()
    for name, found in reversed(calls):
        if found.numel() == whole.numel() and torch.equal(found.flatten(), whole.flatten()):
            return name
    if not calls:
        raise UserError(f"{named} has no linear layer, and the last one is the header; end it in an nn.Linear")
    raise UserError(
        f"{named}: no nn.Linear computes its output; after {_plain(calls[-1][0])!r}, its last one, other layers come, such as "
        "a softmax; return the logits"
    )


def _two_logits(header: nn.Linear) -> nn.Linear:
    """A header whose two logits differ by the one of this header, and so mean the same."""
    both = nn.Linear(header.in_features, 2, bias=header.bias is not None)
    with torch.no_grad():
        both.weight.copy_(torch.cat([-header.weight / 2, header.weight / 2]))
        if header.bias is not None:
            both.bias.copy_(torch.cat([-header.bias / 2, header.bias / 2]))
    both.requires_grad_(header.weight.requires_grad)
    return both


def _checked(model: nn.Module, cut: Split, last: str, example: Tensor, named: str) -> Split:
    """Returns the split model after checking that it computes the same as the whole one."""
    training, where = model.training, _plain(last)
    whole = _run(model, example)
    cut.eval()
    try:
        with torch.no_grad():
            sentence = f"{named} cannot be split at {where!r}: without that layer it does not run"
            representation = _tried(cut.extractor, example, sentence)
            if representation.shape != (len(example), cut.dim):
                raise UserError(
                    f"{named} cannot be split at {where!r}: its input has shape "
                    f"{list(representation.shape[1:])} a sample, expected [{cut.dim}]; name the model's last layer"
                )
            output = _tried(cut.header, representation, sentence)
            if output.shape[1:] == (1,) and whole.shape == output.shape[:1]:  # one logit, without its axis
                whole = whole[:, None]
            comparable = output.shape == whole.shape and output.dtype == whole.dtype
            if not comparable or not torch.allclose(output, whole, rtol=1e-4, atol=1e-5):
                raise UserError(
                    f"{named} cannot be split at {where!r}: other layers come after it or run in parallel; "
                    "name the layer that computes the model's output"
                )
    finally:
        cut.train(training)
    return cut


def _run(model: nn.Module, example: Tensor) -> Tensor:
    """The model's output in eval mode; restores its training mode."""
    training = model.training
    model.eval()
    named = type(model.model if isinstance(model, _Logits) else model).__name__
    try:
        with torch.no_grad():
            return _tried(model, example, f"{named} does not run on an input of shape {list(example.shape)}")
    finally:
        model.train(training)


def _tried(module: nn.Module, example: Tensor, sentence: str) -> Tensor:
    """The module's output; an exception in it becomes a `UserError` that starts with `sentence`."""
    try:
        output = module(example)
        if isinstance(output, dict | tuple | list):
            keys = f" with {', '.join(map(repr, output))}" if isinstance(output, dict) else ""
            raise TypeError(f"it returns {_kind(output)}{keys}, not a tensor; name the logits as output")
        if not isinstance(output, Tensor):
            raise TypeError(f"it returns a {type(output).__name__}, not a tensor")
        if output.layout is not torch.strided:
            raise TypeError(f"it returns a tensor of layout {str(output.layout).removeprefix('torch.')}, not a dense one")
    except CODE_FAILS as error:
        raise UserError(f"{sentence} ({cause(error)})") from error
    return output


class WithinMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that raises `UserError` before a tensor is created that does not fit into memory.

    Linux overcommits memory, and kills the process silently when it is written to.
    """

    def __init__(self, what: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._what = what

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        sizes = args[0] if args and isinstance(args[0], list | tuple) else []  # of `empty`, `zeros`, `randn` and their like
        if sizes and all(isinstance(size, int) for size in sizes):
            needed = math.prod(sizes) * (given.get("dtype") or torch.get_default_dtype()).itemsize
            place = torch.device(given.get("device") or "cpu")
            # Finding the free memory reads files, which is not worth it for small tensors.
            if place.type == "cpu" and needed > _ALWAYS_FITS and needed > (free := free_bytes(place)):
                shortage = f"{format_bytes(needed)} of memory for one tensor, and {format_bytes(free)} are free"
                raise UserError(f"{self._what} needs {shortage}; make it smaller")
        return func(*args, **given)


_ALWAYS_FITS = 64 * 1024**2  # bytes


def check_room(made: nn.Module) -> None:
    """Raises `UserError` for a model that leaves no memory for its gradients and its new state in training."""
    tensors = [tensor for tensor in (*made.parameters(), *made.buffers()) if not is_lazy(tensor)]
    held = sum(tensor.numel() * tensor.itemsize for tensor in tensors)
    if held > _ALWAYS_FITS and 2 * held > (free := free_bytes(torch.device("cpu"))):
        raise UserError(
            f"it has {format_bytes(held)} of weights, and training takes another {format_bytes(2 * held)}, where "
            f"{format_bytes(free)} are free; make it smaller"
        )


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def check_split(made: Any, example: Tensor, classes: int) -> None:
    """Raises `TypeError` or `ValueError` unless this is a `Split` for samples such as these and these classes."""
    if not isinstance(made, Split):
        raise TypeError(f"build returns {_kind(made)}; it must return a fedmrl.Split")
    if lazy := [name for name, tensor in made.state_dict().items() if is_lazy(tensor)]:
        raise ValueError(f"{lazy[0]} has no shape yet; build it with its sizes, or derive the model from fedmrl.Model")
    representation_BD, logits_BC = _called(made, example)
    for name, found, wanted in (("extractor", representation_BD, made.dim), ("header", logits_BC, classes)):
        if not isinstance(found, Tensor) or tuple(found.shape) != (len(example), wanted):
            shown = f"shape {list(found.shape[1:])}" if isinstance(found, Tensor) else _kind(found)
            raise ValueError(f"its {name} returns {shown} a sample; expected [{wanted}]")


_EXAMPLES = 2


def _called(made: Split, example: Tensor) -> tuple[Any, Any]:
    """The representation and the logits of a batch of inputs, in eval mode."""
    training = made.training
    made.eval()
    try:
        with torch.no_grad():
            representation_BD = made.extractor(example)
            return representation_BD, made.header(representation_BD)
    finally:
        made.train(training)


@runtime_checkable
class ModelSpec(Protocol):
    """A kind of local model: its label, and how to build it."""

    @property
    def label(self) -> str:
        """The name in tables."""

    def build(self, shape: tuple[int, ...], classes: int) -> Split:
        """Builds a model with weights from torch's current random state."""


class SharedSpec(ModelSpec, Protocol):
    """A kind of model that clients can share: of known size, and with any representation dimension."""

    def parameters(self, shape: tuple[int, ...], classes: int) -> int:
        """The number of trainable parameters."""

    def with_dim(self, dim: int) -> "SharedSpec":
        """This kind with another representation dimension."""


def _initialised(made: Any, shape: tuple[int, ...], *_: Any, **__: Any) -> str | None:
    """The check of a user's `build`; lets a first input give lazy parameters their shapes."""
    if not isinstance(made, Split):
        return f"returns {described(made)}; it must return a fedmrl.Split"
    if any(is_lazy(parameter) for parameter in made.parameters()):
        _called(made, torch.zeros(_EXAMPLES, *shape))
    return None


def _is_model(made: Any, *_: Any, **__: Any) -> str | None:
    return None if isinstance(made, Model) else f"returns {described(made)}; it must return a model"


def _is_size(size: Any, *_: Any, **__: Any) -> str | None:
    return None if type(size) is int and size >= 0 else f"returns {size!r:.80}; it must return a whole number"


class Model(Named, ABC):
    """A kind of model that recipes can name; what it can be set to are its fields."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        checks: dict[str, Check] = {"build": _initialised, "label": line, "parameters": _is_size}
        if cls.with_dim is not Model.with_dim:  # those that define it can be shared
            checks["with_dim"] = _is_model
        guard(cls, "model", checks)

    def __hash__(self) -> int:
        """Kinds of models are keys of dictionaries, also those with lists as fields."""
        try:
            return hash((type(self), *self.__dict__.values()))
        except TypeError:
            return hash(type(self))

    @property
    def label(self) -> str:
        """The name in tables, with the fields that differ from their defaults."""
        changed = ", ".join(f"{field} = {value}" for field, value in self.model_dump(exclude_defaults=True).items())
        return f"{self.name} ({changed})" if changed else self.name

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> Split:
        """Builds a model for samples of this shape, with weights from torch's current random state."""

    def parameters(self, shape: tuple[int, ...], classes: int) -> int:
        """The number of trainable parameters."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.build(shape, classes).parameters())

    def with_dim(self, dim: int) -> "Model":
        """This kind with another representation dimension, which some methods need of a shared model."""
        raise UserError(
            f"the model {self.name!r} has no with_dim, so it cannot get the representation dimension {dim} that the method "
            "needs of a shared model; define it, or name another as models.small"
        )

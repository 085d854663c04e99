"""Models of the user's own: any `nn.Module`, or a function that makes one."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import torch
from torch import nn

from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.guard import described
from fedmrl.models.split import ModelSpec, Output, Split, WithinMemory, check_room, split
from fedmrl.randomness import host_seeded


@dataclass(frozen=True)
class OwnModel:
    """A custom model: any `nn.Module` that `make` returns, split at its layer `last`, by default the one that computes its
    output.

    `output` says where the logits are if the module returns a dict or a tuple. A module that returns one logit can tell two
    classes apart.

    >>> spec = OwnModel("mlp", lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 2)))
    >>> spec.build((3, 2, 2), classes=2).dim
    3
    """

    label: str
    make: Callable[[], nn.Module]
    last: str | None = None
    output: Output | None = None
    vocabulary: int | None = None
    """One more than the largest token, if the data is tokens; a run sets it."""
    dim: int | None = None
    """The representation dimension that a method asks of a shared model."""

    def __post_init__(self) -> None:
        if isinstance(self.make, nn.Module) or not callable(self.make):
            raise UserError(
                f"OwnModel {self.label!r}: make is {described(self.make)}; give a function that returns a new nn.Module, as in "
                "lambda: Net()"
            )
        if not isinstance(self.label, str) or not isinstance(self.last, str | None):
            raise UserError(f"OwnModel {self.label!r}: label and last must be strings")

    def build(self, shape: tuple[int, ...], classes: int) -> Split:
        """Builds a model with weights from torch's current random state."""
        random = torch.Generator().manual_seed(0)
        if self.vocabulary is None:
            example = torch.randn(2, *shape, generator=random)
        else:
            example = torch.randint(0, self.vocabulary, (2, *shape), generator=random)
        try:
            with WithinMemory("it"):
                made = self.make()
                if not isinstance(made, nn.Module):
                    raise UserError(f"make returns {described(made)}; it must return an nn.Module")
                check_room(made)
                model = split(made, self.last, example, self.output, classes)
        except UserError as error:
            raise UserError(f"model {self.label!r}: {error}{self._hint(str(error))}") from error
        except CODE_FAILS as error:
            raise UserError(f"model {self.label!r} cannot be made ({cause(error)})") from error
        outputs = model.get_submodule("header").out_features
        if outputs != classes:
            raise UserError(f"model {self.label!r} gives {outputs} outputs, and the data has {classes} classes")
        if self.dim not in (None, model.dim):
            raise UserError(
                f"the shared model {self.label!r} has a representation of {model.dim}, and the method asks for {self.dim}; set "
                f"method.d1 = {model.dim}"
            )
        return model

    def _hint(self, problem: str) -> str:
        """What may help if the model does not run on what the data is taken for."""
        if "does not run" not in problem:
            return ""
        if self.vocabulary is not None and "index out of range" not in problem:
            return "; whole numbers of 64 bits are tokens: if these are measurements, give them as floats"
        if self.vocabulary is not None:
            return f"; its embedding must have {self.vocabulary} rows, as there are tokens up to {self.vocabulary - 1}"
        return "; tokens must be whole numbers of 64 bits, with two axes" if "Long" in problem and "mbedding" in problem else ""

    def parameters(self, shape: tuple[int, ...], classes: int) -> int:
        """The number of trainable parameters."""
        with host_seeded(0, "size"):
            return sum(p.numel() for p in self.build(shape, classes).parameters() if p.requires_grad)

    def with_dim(self, dim: int) -> "OwnModel":
        """This model, which must have this representation dimension."""
        return replace(self, dim=dim)


def own_models(given: Any, clients: int) -> list[ModelSpec]:
    """The model of each client: modules, functions that make one, or specs, in turn."""
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes | nn.Module) else [given]
    if not listed:
        raise UserError("models is empty; give at least one model")
    if len(listed) > clients:
        raise UserError(f"models has {len(listed)} models for {clients} clients; give at most one for each")
    specs: dict[int, ModelSpec] = {}
    for place, one in enumerate(listed):
        spec = specs.setdefault(id(one), own_model(one, f"models[{place}]", f"model {place + 1}"))
        same = [known.label for key, known in specs.items() if key != id(one)]
        if isinstance(spec, OwnModel) and not isinstance(one, OwnModel) and spec.label in same:
            specs[id(one)] = replace(spec, label=f"{spec.label} ({place + 1})")
    return list(islice(cycle([specs[id(one)] for one in listed]), clients))


def own_model(given: Any, where: str, unnamed: str) -> ModelSpec:
    """A module, a function that makes one, or a spec, as a spec; every copy of a module starts with its weights."""
    if isinstance(given, nn.Module):
        return OwnModel(type(given).__name__, _Copies(given))
    if isinstance(given, ModelSpec) and not isinstance(given, type):
        return given
    if isinstance(given, type | str) and not (isinstance(given, type) and issubclass(given, nn.Module)):
        raise UserError(f"{where} is {given!r:.80}; give an nn.Module, a function that makes one, or a fedmrl.OwnModel")
    if callable(given):
        name = getattr(given, "__name__", "")
        return OwnModel(name if name and name != "<lambda>" else unnamed, given)
    raise UserError(f"{where} is {described(given)}; give an nn.Module, a function that makes one, or a fedmrl.OwnModel")


class _Copies:
    """A function that returns a copy of a module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self) -> nn.Module:
        try:
            return copy.deepcopy(self.module)
        except CODE_FAILS as error:
            raise UserError(
                f"{type(self.module).__name__} cannot be copied for each client ({cause(error)}); keep locks, open files and "
                "generators out of the module"
            ) from error

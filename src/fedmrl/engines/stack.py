"""Clients' nets as one stack of tensors, with a method's loss and predictions for all of them at once.

Legend of shapes: K clients, B batch, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedmrl.messages import Tensors
from fedmrl.methods import Batch, ClientNet, Method
from fedmrl.models import ModelSpec
from fedmrl.training import LossFunction, Sums

_SMALL = 65_536  # numbers per client: for smaller tensors, launching a kernel takes longer than running it
_ALIGNED = 16


class _Loss(nn.Module):
    """A loss as a module's forward pass, for `functional_call`."""

    def __init__(self, net: ClientNet, loss: LossFunction) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x: Tensor, y_B: Tensor, mask_B: Tensor) -> tuple[Tensor, Sums]:
        outcome = self.loss(self.net, Batch(x, y_B, mask_B))
        return outcome if isinstance(outcome, tuple) else (outcome, {})


class _Prediction(nn.Module):
    """A method's prediction as a module's forward pass, for `functional_call`."""

    def __init__(self, net: ClientNet, method: Method) -> None:
        super().__init__()
        self.net, self.method = net, method

    def forward(self, x: Tensor, mode: str) -> Tensor:
        return self.method.predict(self.net, x, mode)


def gradients(
    net: ClientNet, loss: LossFunction, learned: Tensors, fixed: Tensors, x: Tensor, y_KB: Tensor, mask_KB: Tensor
) -> tuple[Tensors, Tensor, Sums]:
    """The gradients, losses and sums of K clients at once."""
    module = _Loss(net, loss)

    def of_one(learned: Tensors, fixed: Tensors, *batch: Tensor) -> tuple[Tensor, tuple[Tensor, Sums]]:
        value, sums = functional_call(module, _under("net", {**fixed, **learned}), batch)
        return value, (value, sums)

    of_each, (losses_K, sums) = vmap(grad(of_one, has_aux=True))(learned, fixed, x, y_KB, mask_KB)
    return of_each, losses_K, sums


def scores(net: ClientNet, method: Method, tensors: Tensors, x: Tensor, mode: str) -> Tensor:
    """The predictions of K clients at once, each for its own batch."""
    module = _Prediction(net, method)

    def of_one(tensors: Tensors, x: Tensor) -> Tensor:
        scores_BC: Tensor = functional_call(module, _under("net", tensors), (x, mode))
        return scores_BC

    scores_KBC: Tensor = vmap(of_one)(tensors, x)
    return scores_KBC


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Family:
    """Kinds of local model in one stack, narrower ones padded with zeros."""

    net: ClientNet
    """The net through which the stacked tensors are called."""
    specs: tuple[ModelSpec, ...]
    shapes: Mapping[str, torch.Size]
    """The shape of each parameter and buffer, wide enough for every kind."""
    sums: Mapping[ModelSpec, Mapping[str, torch.Size]]
    """The shapes of the loss's sums, without padding."""
    bytes_of_client: int
    """Memory to train one client: its tensors, gradients, velocities and copies in other layouts."""
    bytes_of_sample: int
    """Additional memory for each sample of a client's batch."""


def all_tensors(net: nn.Module) -> Tensors:
    """Parameters and buffers, including non-persistent ones."""
    return {**{name: p.detach() for name, p in net.named_parameters()}, **dict(net.named_buffers())}


def corner(shape: Sequence[int]) -> tuple[slice, ...]:
    """The slices of a padded tensor that hold the tensor itself."""
    return tuple(slice(0, length) for length in shape)


@dataclass(frozen=True)
class Pack:
    """Small parameters of one part of a net, one row per client, so that one operation updates them all.

    Each starts at a multiple of 16 numbers, aligned for matrix products; the gaps between them stay zero.

    >>> pack = Pack({"weight": torch.Size([3, 4]), "bias": torch.Size([3])})
    >>> pack.starts, pack.length
    ({'weight': 0, 'bias': 16}, 32)
    >>> {name: tuple(view.shape) for name, view in pack.views(torch.zeros(5, 32)).items()}
    {'weight': (5, 3, 4), 'bias': (5, 3)}
    """

    shapes: Mapping[str, torch.Size]

    @property
    def starts(self) -> dict[str, int]:
        """The first column of each parameter."""
        return dict(zip(self.shapes, accumulate(self._lengths(), initial=0), strict=False))

    @property
    def length(self) -> int:
        """The length of a client's row."""
        return sum(self._lengths())

    def _lengths(self) -> list[int]:
        return [-(-shape.numel() // _ALIGNED) * _ALIGNED for shape in self.shapes.values()]

    def views(self, rows_KP: Tensor) -> Tensors:
        """Views of the rows, one stack per parameter."""
        return {
            name: rows_KP[:, start : start + self.shapes[name].numel()].view(len(rows_KP), *self.shapes[name])
            for name, start in self.starts.items()
        }


def packed(net: nn.Module, shapes: Mapping[str, torch.Size]) -> dict[str, Pack]:
    """The packs of a net's small parameters, by pack name."""
    found: dict[str, dict[str, torch.Size]] = {}
    for name, parameter in net.named_parameters():
        if shapes[name].numel() <= _SMALL:
            found.setdefault(f"small {parameter.dtype} of {name.partition('.')[0]}", {})[name] = shapes[name]
    return {pack: Pack(members) for pack, members in found.items() if len(members) > 1}


class Slots:
    """Memory for `count` clients of one family: a stacked tensor for each parameter and buffer."""

    def __init__(self, family: Family, count: int) -> None:
        self.family, self.count = family, count
        likes = all_tensors(family.net)
        self.packs = packed(family.net, family.shapes)
        in_pack = {name for pack in self.packs.values() for name in pack.shapes}
        self.leaves = {
            **{name: likes[next(iter(pack.shapes))].new_zeros(count, pack.length) for name, pack in self.packs.items()},
            **{name: like.new_zeros(count, *family.shapes[name]) for name, like in likes.items() if name not in in_pack},
        }
        """The tensors held in memory: packs, and the tensors outside any pack."""
        self.tensors = self.unpacked(self.leaves)
        self.states: list[Tensors] = []
        """The clients' states currently in the slots, if unchanged."""
        self._places: dict[tuple[int, int], list[_Place]] = {}

    def hold(self, states: Sequence[Tensors]) -> bool:
        """Whether exactly these states are in the slots."""
        return len(states) == len(self.states) and all(a is b for a, b in zip(states, self.states, strict=True))

    def clear(self) -> None:
        """Zeroes all slots, as a narrow client may follow a wide one."""
        torch._foreach_zero_(list(self.leaves.values()))

    def unpacked(self, leaves: Tensors) -> Tensors:
        """Parameters and buffers by name, from some of the leaves."""
        found: Tensors = {}
        for name, leaf in leaves.items():
            found |= self.packs[name].views(leaf) if name in self.packs else {name: leaf}
        return found

    def seat(self, net: ClientNet, slot: int) -> None:
        """Makes the net's parameters and buffers views of the slot."""
        for place in self._places_of(net, slot):
            if place.parameter is not None:
                place.parameter.data = place.view
            else:
                place.module._buffers[place.key] = place.view

    def views(self, net: ClientNet, slot: int) -> Tensors:
        """The slot's views for the net's parameters and buffers."""
        return {place.name: place.view for place in self._places_of(net, slot)}

    def _places_of(self, net: ClientNet, slot: int) -> list["_Place"]:
        if (id(net), slot) not in self._places:
            self._places[id(net), slot] = [
                _Place.of(net, name, self.tensors[name][slot][corner(tensor.shape)])
                for name, tensor in all_tensors(net).items()
            ]
        return self._places[id(net), slot]


@dataclass(frozen=True)
class _Place:
    """A parameter or buffer of a net, and its place in a slot."""

    name: str
    module: nn.Module
    key: str
    parameter: nn.Parameter | None
    view: Tensor

    @classmethod
    def of(cls, net: nn.Module, name: str, view: Tensor) -> "_Place":
        parent, _, key = name.rpartition(".")
        module = net.get_submodule(parent)
        return cls(name, module, key, module._parameters.get(key), view)

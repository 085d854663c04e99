"""Clients' nets as one stack of tensors, and a method's loss and predictions computed for all of them at once.

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

_SMALL = 65_536  # numbers of a client: a kernel for each tensor of fewer would take longer to start than to run
_AT_ONCE = 16


class _Loss(nn.Module):
    """A loss as a module's forward pass, which is what torch can call with other parameters."""

    def __init__(self, net: ClientNet, loss: LossFunction) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x: Tensor, y_B: Tensor, mask_B: Tensor) -> tuple[Tensor, Sums]:
        outcome = self.loss(self.net, Batch(x, y_B, mask_B))
        return outcome if isinstance(outcome, tuple) else (outcome, {})


class _Prediction(nn.Module):
    """A method's prediction as a module's forward pass."""

    def __init__(self, net: ClientNet, method: Method) -> None:
        super().__init__()
        self.net, self.method = net, method

    def forward(self, x: Tensor, mode: str) -> Tensor:
        return self.method.predict(self.net, x, mode)


def gradients(
    net: ClientNet, loss: LossFunction, learned: Tensors, fixed: Tensors, x: Tensor, y_KB: Tensor, mask_KB: Tensor
) -> tuple[Tensors, Tensor, Sums]:
    """Of K clients at once: the gradient of each one's loss by what it learns, the losses, and what they add up."""
    module = _Loss(net, loss)

    def of_one(learned: Tensors, fixed: Tensors, *batch: Tensor) -> tuple[Tensor, tuple[Tensor, Sums]]:
        value, sums = functional_call(module, _under("net", {**fixed, **learned}), batch)
        return value, (value, sums)

    of_each, (losses_K, sums) = vmap(grad(of_one, has_aux=True))(learned, fixed, x, y_KB, mask_KB)
    return of_each, losses_K, sums


def scores(net: ClientNet, method: Method, tensors: Tensors, x: Tensor, mode: str) -> Tensor:
    """What K clients say at once, each of its own batch."""
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
    """Kinds of local model that one stack holds, narrower ones padded with zeros."""

    net: ClientNet
    """The net through which the stacked tensors are called."""
    specs: tuple[ModelSpec, ...]
    shapes: Mapping[str, torch.Size]
    """Of each parameter and buffer, wide enough for every kind."""
    sums: Mapping[ModelSpec, Mapping[str, torch.Size]]
    """Of what a client's losses add up, without padding."""
    bytes_of_client: int
    """What training one client takes: its tensors, their gradients, velocities and copies in other layouts."""
    bytes_of_sample: int
    """What one sample of one client adds to that."""


def all_tensors(net: nn.Module) -> Tensors:
    """Parameters and buffers, those that are not kept in a state among them."""
    return {**{name: p.detach() for name, p in net.named_parameters()}, **dict(net.named_buffers())}


def corner(shape: Sequence[int]) -> tuple[slice, ...]:
    """Where a padded tensor holds the tensor itself."""
    return tuple(slice(0, length) for length in shape)


@dataclass(frozen=True)
class Pack:
    """Small parameters of one part of a net, of every client side by side in one row: to update them all is one operation.

    Each starts at a multiple of what matrix products read at once; the gaps between them are zeros and stay so.

    >>> pack = Pack({"weight": torch.Size([3, 4]), "bias": torch.Size([3])})
    >>> pack.starts, pack.length
    ({'weight': 0, 'bias': 16}, 32)
    >>> {name: tuple(view.shape) for name, view in pack.views(torch.zeros(5, 32)).items()}
    {'weight': (5, 3, 4), 'bias': (5, 3)}
    """

    shapes: Mapping[str, torch.Size]

    @property
    def starts(self) -> dict[str, int]:
        """Where each begins."""
        return dict(zip(self.shapes, accumulate(self._lengths(), initial=0), strict=False))

    @property
    def length(self) -> int:
        """Of a client's row."""
        return sum(self._lengths())

    def _lengths(self) -> list[int]:
        return [-(-shape.numel() // _AT_ONCE) * _AT_ONCE for shape in self.shapes.values()]

    def views(self, rows_KP: Tensor) -> Tensors:
        """The parameters themselves, one stack each."""
        return {
            name: rows_KP[:, start : start + self.shapes[name].numel()].view(len(rows_KP), *self.shapes[name])
            for name, start in self.starts.items()
        }


def packed(net: nn.Module, shapes: Mapping[str, torch.Size]) -> dict[str, Pack]:
    """The packs of a net's small parameters, by names of their own."""
    found: dict[str, dict[str, torch.Size]] = {}
    for name, parameter in net.named_parameters():
        if shapes[name].numel() <= _SMALL:
            found.setdefault(f"small {parameter.dtype} of {name.partition('.')[0]}", {})[name] = shapes[name]
    return {pack: Pack(members) for pack, members in found.items() if len(members) > 1}


class Slots:
    """Room for so many clients of one family: a stacked tensor for each parameter and buffer."""

    def __init__(self, family: Family, count: int) -> None:
        self.family, self.count = family, count
        likes = all_tensors(family.net)
        self.packs = packed(family.net, family.shapes)
        in_pack = {name for pack in self.packs.values() for name in pack.shapes}
        self.leaves = {
            **{name: likes[next(iter(pack.shapes))].new_zeros(count, pack.length) for name, pack in self.packs.items()},
            **{name: like.new_zeros(count, *family.shapes[name]) for name, like in likes.items() if name not in in_pack},
        }
        """What is held in memory: packs, and all tensors that are in none."""
        self.tensors = self.unpacked(self.leaves)
        self.states: list[Tensors] = []
        """The clients' states that lie in the slots, if they do just as they are."""
        self._places: dict[tuple[int, int], list[_Place]] = {}

    def hold(self, states: Sequence[Tensors]) -> bool:
        """Whether these very states lie in the slots."""
        return len(states) == len(self.states) and all(one is other for one, other in zip(states, self.states, strict=True))

    def clear(self) -> None:
        """Zeros everywhere: a narrow client may come where a wide one was."""
        torch._foreach_zero_(list(self.leaves.values()))

    def unpacked(self, leaves: Tensors) -> Tensors:
        """Parameters and buffers by their names, from some of the leaves."""
        found: Tensors = {}
        for name, leaf in leaves.items():
            found |= self.packs[name].views(leaf) if name in self.packs else {name: leaf}
        return found

    def seat(self, net: ClientNet, slot: int) -> None:
        """From now on the net's parameters and buffers are the slot's: what is written to one is written to the other."""
        for place in self._places_of(net, slot):
            if place.parameter is not None:
                place.parameter.data = place.view
            else:
                place.module._buffers[place.key] = place.view

    def views(self, net: ClientNet, slot: int) -> Tensors:
        """Where the net's parameters and buffers lie in the slot."""
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

"""What travels between a client and the server, and how much it is, counted from the messages themselves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Upload:
    """One client's contribution to a round: what it sends, and the number of training samples it speaks for."""

    client: int
    samples: int
    content: Tensors


@dataclass(frozen=True)
class Size:
    """How much a message is: numbers sent, and their bytes."""

    parameters: int = 0
    bytes: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(self.parameters + other.parameters, self.bytes + other.bytes)


def size(content: Mapping[str, Tensor]) -> Size:
    """Numbers and bytes in one message.

    >>> size({"small.weight": torch.zeros(2, 3)})
    Size(parameters=6, bytes=24)
    """
    tensors = content.values()
    return Size(sum(t.numel() for t in tensors), sum(t.numel() * t.element_size() for t in tensors))


def copy(content: Mapping[str, Tensor]) -> Tensors:
    """The same tensors with memory of their own, laid out row by row.

    What a client sends must be a copy: an upload that aliases a live model changes when that model trains on.
    """
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in content.items()}


def weighted_mean(contents: Iterable[Mapping[str, Tensor]], weights: Iterable[float]) -> Tensors:
    """The weighted mean of equally named tensors, summed in double precision.

    >>> weighted_mean([{"w": torch.tensor(1.0)}, {"w": torch.tensor(4.0)}], [10, 20])
    {'w': tensor(3.)}
    """
    contents, weights = list(contents), list(weights)
    mean = {}
    for name, tensor in contents[0].items():
        stacked = torch.stack([content[name] for content in contents]).double()
        shares = torch.tensor(weights, dtype=torch.float64, device=tensor.device) / sum(weights)
        mean[name] = (stacked * shares.view(-1, *[1] * tensor.ndim)).sum(dim=0).to(tensor.dtype)
    return mean

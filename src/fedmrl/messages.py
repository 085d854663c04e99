"""Messages between clients and server, and their sizes."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Upload:
    """One client's upload in a round, with its number of training samples."""

    client: int
    samples: int
    content: Tensors


@dataclass(frozen=True)
class Size:
    """The size of a message in numbers and bytes."""

    parameters: int = 0
    bytes: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(self.parameters + other.parameters, self.bytes + other.bytes)


def size(content: Mapping[str, Tensor]) -> Size:
    """The size of one message.

    >>> size({"small.weight": torch.zeros(2, 3)})
    Size(parameters=6, bytes=24)
    """
    tensors = content.values()
    return Size(sum(t.numel() for t in tensors), sum(t.numel() * t.element_size() for t in tensors))


def sha256(contents: Iterable[Mapping[str, Tensor]]) -> str:
    """SHA-256 of all names, types, shapes and exact values.

    >>> same = sha256([{"w": torch.ones(2)}]) == sha256([{"w": torch.ones(2)}])
    >>> same, sha256([{"w": torch.ones(2)}]) == sha256([{"w": torch.ones(1, 2)}])
    (True, False)
    """
    digest = hashlib.sha256()
    for content in contents:
        for name in sorted(content):
            tensor = content[name].detach().cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        digest.update(b"/")
    return digest.hexdigest()


def copy(content: Mapping[str, Tensor]) -> Tensors:
    """Contiguous copies of the tensors, by name.

    Uploads must be copies: an upload that aliases a model changes when the model trains.
    """
    return dict(zip(content, copies(list(content.values())), strict=True))


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous copies of the tensors."""
    copied = [torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False) for tensor in tensors]
    write(copied, tensors)
    return copied


def write(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copies each value into its tensor; contiguous tensors go in one group, for which a GPU needs few kernels."""
    plain: list[bool] = [target.is_contiguous() and target.is_floating_point() for target in into]
    with torch.no_grad():
        for kind in (True, False):
            chosen = [(target, value) for target, value, is_plain in zip(into, values, plain, strict=True) if is_plain is kind]
            if chosen:
                torch._foreach_copy_([target for target, _ in chosen], [value for _, value in chosen])

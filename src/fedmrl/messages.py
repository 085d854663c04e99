"""What travels between a client and the server, and how much it is, counted from the messages themselves."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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


def sha256(contents: Iterable[Mapping[str, Tensor]]) -> str:
    """A fingerprint of all names, types, shapes and values, down to the last bit.

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
    """The same tensors with memory of their own, laid out row by row.

    What a client sends must be a copy: an upload that aliases a live model changes when that model trains on.
    """
    return dict(zip(content, copies(list(content.values())), strict=True))


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each with memory of its own, laid out row by row."""
    made = [torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False) for tensor in tensors]
    write(made, tensors)
    return made


def write(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy each value into its tensor. Where nothing has gaps, a GPU is told so in a few words, not in one for each."""
    plain: list[bool] = [one.is_contiguous() and one.is_floating_point() for one in into]
    with torch.no_grad():
        for kind in (True, False):
            chosen = [(one, value) for one, value, is_plain in zip(into, values, plain, strict=True) if is_plain is kind]
            if chosen:
                torch._foreach_copy_([one for one, _ in chosen], [value for _, value in chosen])

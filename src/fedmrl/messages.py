"""Messages between clients and server: their sizes, and the form that each method's messages have."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedmrl.errors import UserError

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


class UpTo(NamedTuple):
    """A size from 1 to `most` that the sender chooses. Within a choice, sizes of the same name are equal."""

    name: str
    most: int


@dataclass(frozen=True)
class TensorForm:
    """The shape and type that a tensor of a message must have."""

    shape: tuple[int | UpTo, ...]
    dtype: torch.dtype
    below: int | None = None
    """Its values must be whole numbers from 0 to below this one, each once."""
    count_up_to: int | None = None
    """Its values must be whole numbers from 1 to this one."""

    @property
    def sizes(self) -> list[int | str]:
        """The shape for readers, as in `[500, "rank ≤ 9"]`."""
        return [f"{size.name} ≤ {size.most}" if isinstance(size, UpTo) else size for size in self.shape]

    @property
    def type_name(self) -> str:
        """The type for readers, as in `float32`."""
        return str(self.dtype).removeprefix("torch.")


Choice = Mapping[str, TensorForm]
"""Tensors that come together, by name; `*` in a name is the index of a round."""

MessageForm = Sequence[Sequence[Choice]]
"""The form of a message. From each group, the message has the tensors of exactly one choice; a choice may be empty."""


def form_of(content: Mapping[str, Tensor]) -> Choice:
    """The form of tensors that always come with these names, shapes and types."""
    return {name: TensorForm(tuple(tensor.shape), tensor.dtype) for name, tensor in content.items()}


def check_form(content: Mapping[str, Tensor], form: MessageForm) -> None:
    """Raises `UserError` unless the content has this form; the sentence begins with "it".

    >>> check_form({"w": torch.zeros(3)}, [[{"w": TensorForm((2,), torch.float32)}]])
    Traceback (most recent call last):
    fedmrl.errors.UserError: it has w of shape [3], expected [2]
    """
    left = dict(content)
    for group in form:
        for choices in _by_round(group, left):
            names = {name for choice in choices for name in choice}
            present = {name: left.pop(name) for name in names & left.keys()}
            chosen = next((choice for choice in choices if choice.keys() == present.keys()), None)
            if chosen is None:
                raise UserError(_missing(choices, present))
            _check_choice(present, chosen)
    if left:
        raise UserError(f"it has {min(left)[:80]!r}, which is no part of this method's messages")


def _by_round(group: Sequence[Choice], content: Iterable[str]) -> Iterator[Sequence[Choice]]:
    """The group; if its names have a `*`, once for each round in the content."""
    starred = {name for choice in group for name in choice if "*" in name}
    if not starred:
        yield group
        return
    patterns = [re.compile(re.escape(name).replace(r"\*", r"(0|[1-9][0-9]{0,8})")) for name in starred]
    rounds = {found[1] for name in content for pattern in patterns if (found := pattern.fullmatch(name))}
    for index in sorted(rounds, key=int):
        yield [{name.replace("*", index): form for name, form in choice.items()} for choice in group]


def _missing(choices: Sequence[Choice], present: Mapping[str, Tensor]) -> str:
    nearest = max(choices, key=lambda choice: len(choice.keys() & present.keys()))
    if missing := nearest.keys() - present.keys():
        return f"it lacks {min(missing)}"
    return f"it has {min(present.keys() - nearest.keys())}, which does not go with the rest"


def _check_choice(present: Mapping[str, Tensor], chosen: Choice) -> None:
    sizes: dict[UpTo, int] = {}
    for name, form in chosen.items():
        tensor = present[name]
        expected = list(form.shape)
        if tensor.ndim == len(expected):
            for axis, size in enumerate(form.shape):
                if isinstance(size, UpTo):
                    found = sizes.setdefault(size, tensor.shape[axis])
                    expected[axis] = found if 1 <= found <= size.most else size
        if list(tensor.shape) != expected:
            wanted = [f"1 to {size.most}" if isinstance(size, UpTo) else size for size in expected]
            raise UserError(f"it has {name} of shape {list(tensor.shape)}, expected {wanted}")
        if tensor.dtype != form.dtype:
            raise UserError(f"it has {name} as {_short(tensor.dtype)}, expected {_short(form.dtype)}")
        if form.below is not None:
            values = tensor.flatten().tolist()
            if len(set(values)) < len(values) or not all(0 <= value < form.below for value in values):
                raise UserError(f"it has {name} with values that are not from 0 to {form.below - 1}, each once")
        # The comparisons are false for NaN too.
        most = form.count_up_to
        if most is not None and not ((tensor >= 1) & (tensor <= most) & (tensor == tensor.round())).all():
            raise UserError(f"it has {name} with values that are not whole numbers from 1 to {most}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

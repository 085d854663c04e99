"""What leaves a client, from the form that a method declares for its messages."""

from collections.abc import Mapping
from math import prod

from fedmrl.engines import Terms
from fedmrl.messages import MessageForm, TensorForm, UpTo
from fedmrl.methods.base import declares_messages
from fedmrl.results import Leaves, TensorOut


def leaves(terms: Terms) -> Leaves | None:
    """The tensors that a client sends and receives; None for a user's method that does not declare them."""
    method = terms.method
    if not declares_messages(method):
        return None
    up, down = terms.upload_form, terms.answer_form
    shared = {part.partition(".")[0] for part in method.shares}
    private = [
        f"the {part}{' model' if part in ('local', 'small') else ''}'s weights" for part in method.parts if part not in shared
    ]
    return Leaves(
        up=_tensors(up),
        down=_tensors(down),
        up_bytes=_most_bytes(up),
        down_bytes=_most_bytes(down),
        stays=["all samples and labels", *private],
    )


def _tensors(form: MessageForm) -> list[TensorOut]:
    found: dict[str, TensorOut] = {}
    for group in form:
        for choice in group:
            for name, tensor in choice.items():
                always = all(name in other for other in group)
                found[name] = TensorOut(
                    name=name,
                    shape=tensor.sizes,
                    dtype=tensor.type_name,
                    bytes=_bytes(tensor),
                    always=always,
                )
    return list(found.values())


def _most_bytes(form: MessageForm) -> int:
    """The size of the largest message. Missed rounds, with `*`, are sent only where that is less than all at once."""
    groups = [group for group in form if not any("*" in name for choice in group for name in choice)]
    return sum(max(map(_size, group)) for group in groups)


def _size(choice: Mapping[str, TensorForm]) -> int:
    return sum(map(_bytes, choice.values()))


def _bytes(tensor: TensorForm) -> int:
    return prod(size.most if isinstance(size, UpTo) else size for size in tensor.shape) * tensor.dtype.itemsize

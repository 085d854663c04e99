"""A mode of a client's net as a module that takes raw samples."""

import copy
from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedmrl.data import Preparation
from fedmrl.errors import CODE_FAILS
from fedmrl.methods import ClientNet, Method
from fedmrl.models import Split


class Predictor(nn.Module):
    """A batch of raw samples in, a probability for each class out: standardisation, the net, and a mode of its method.

    It has 32-bit weights, and only the layers that the mode uses.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: ClientNet, method: Method, mode: str, preparation: Preparation) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).float()
        self.mode, self._method, self._tokens = mode, method, preparation.kind == "tokens"
        self.dtype = getattr(torch, preparation.dtype)
        self.shape = tuple(preparation.shape)
        self.limit = preparation.vocabulary
        aligned = (-1,) + (1,) * (len(self.shape) - 1)
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(preparation, name), dtype=torch.float32).reshape(aligned))
        self.eval().requires_grad_(False)
        used = used_tensors(self)
        self.parts = [part for part, _ in net.named_children() if any(name.startswith(f"{part}.") for name in used)]
        """The parts of the net that the mode uses."""
        self._drop_unused(used)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities: the softmax of the method's scores."""
        if not self._tokens:
            x = (x.to(self.mean.dtype) - self.mean) / self.std
        scores_BC = self._method.predict(self.net, x, self.mode)
        # A method gives a class that it rules out minus infinity; if all are, the softmax of that would be NaN.
        return torch.softmax(scores_BC.clamp(min=torch.finfo(scores_BC.dtype).min), dim=-1)

    def random_samples(self, count: int) -> Tensor:
        """Samples such as the net was trained on, the same each time."""
        source = torch.Generator().manual_seed(0)
        if self._tokens:
            return torch.randint(self.limit or 2, (count, *self.shape), generator=source)
        x = self.mean + self.std * torch.randn(count, *self.shape, generator=source)
        return x.clamp(0, 255).to(self.dtype) if self.dtype == torch.uint8 else x.to(self.dtype)

    def _drop_unused(self, used: Container[str]) -> None:
        """Removes the parts, extractors and headers that a prediction does not read: a file must not hold them for nothing.

        Layers within them stay, as a user's model may choose its layers by the data.
        """
        whole, self.net = self.net, copy.deepcopy(self.net)
        splits = {name for name, module in self.net.named_children() if isinstance(module, Split)}
        for name, module in list(self.net.named_modules()):
            parent, _, child = name.rpartition(".")
            tensors = [own for own, _ in _tensors(module, name)]
            if name and parent in {"", *splits} and tensors and not any(own in used for own in tensors):
                setattr(self.net.get_submodule(parent), child, nn.Identity())
        for buffer in [name for name, _ in self.net.named_buffers(recurse=False) if name not in used]:
            delattr(self.net, buffer)
        try:
            used_tensors(self)
        except CODE_FAILS:  # a method of the user's own may look at a layer without using its weights
            self.net = whole


def plain_names(net: ClientNet, parts: list[str]) -> dict[str, Tensor]:
    """The state of these parts under the names that a model had before it was split; those of a single part without it.

    A model of fedmrl's has its layers' names, and its last layer is called `header`.
    """
    found: dict[str, Tensor] = {}
    for part in parts:
        module = net.get_submodule(part)
        state = module.plain_state() if isinstance(module, Split) else module.state_dict()
        prefix = f"{part}." if len(parts) > 1 else ""
        # Copies, since a file cannot hold a tensor under two names; with 32 bits, as predictions have.
        found |= {f"{prefix}{name}": _plain(tensor) for name, tensor in state.items()}
    return found


def _plain(tensor: Tensor) -> Tensor:
    return (tensor.detach().float() if tensor.is_floating_point() else tensor).clone().contiguous()


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that notes the tensors that operations read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ids: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ids |= {id(value) for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)}
        return func(*args, **(kwargs or {}))


def used_tensors(predictor: Predictor) -> dict[str, Tensor]:
    """The weights and buffers of the net that a prediction reads."""
    seen = _Seen()
    with torch.no_grad(), seen:
        predictor(predictor.random_samples(2))
    return {name: tensor for name, tensor in _tensors(predictor.net) if id(tensor) in seen.ids}


def _tensors(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """All weights and buffers by name; those that layers share are there once for each."""
    yield from module.named_parameters(prefix, remove_duplicate=False)
    yield from module.named_buffers(prefix, remove_duplicate=False)

"""Layers for stacked clients: convolutions with each client's own weights, and pooling, for all clients at once.

Legend of shapes: K clients, B images, N images of all clients, H rows, W columns, C channels in, O channels out, R × S window,
P × Q outputs.

Under `vmap`, torch uses grouped convolutions, which are slow for groups of few channels. These are custom operators: Triton
kernels on a GPU, torch's convolution client by client elsewhere.
"""

import importlib.util
from collections import Counter
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

_ALIGNED = 4  # channels that a GPU reads at once
_WIDEST, _LARGEST = 128, 3200  # channels, and numbers in a patch, that fit into a GPU's fast memory


def stackable_layers(net: nn.Module) -> None:
    """Lets plain convolutions, and ReLU next to 2 × 2 max pooling, use the operators below.

    Names and parameters do not change. A layer that is used in several places is left alone.
    """
    places = Counter(id(module) for _, module in net.named_modules(remove_duplicate=False))
    for module in net.modules():
        if type(module) is nn.Conv2d and _plain(module):
            module.__class__ = StackableConv2d
        if type(module) is nn.Sequential:
            for pair in pairwise(module):
                relu = next((layer for layer in pair if type(layer) is nn.ReLU), None)
                pool = next((layer for layer in pair if type(layer) is nn.MaxPool2d), None)
                used_once = all(places[id(layer)] == 1 for layer in pair)
                if used_once and relu is not None and pool is not None and _halves(pool):
                    relu.__class__ = nn.Identity  # type: ignore[assignment]
                    pool.__class__ = StackableReluPool


def _halves(pool: nn.MaxPool2d) -> bool:
    pair = (2, (2, 2))
    plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1)) and not pool.ceil_mode and not pool.return_indices
    return pool.kernel_size in pair and pool.stride in pair and plain


def _plain(conv: nn.Conv2d) -> bool:
    unit = (1, 1)
    shape = conv.stride == unit and conv.dilation == unit and conv.groups == 1
    patch = conv.in_channels * conv.kernel_size[0] * conv.kernel_size[1]
    if max(conv.in_channels, conv.out_channels) > _WIDEST or patch > _LARGEST:
        return False  # too wide for the kernels, and wide enough that torch's own are fast
    return shape and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


class StackableConv2d(nn.Conv2d):
    """`nn.Conv2d` with stride 1, for stacked clients.

    >>> conv, x = nn.Conv2d(3, 4, 5), torch.randn(2, 3, 8, 8)
    >>> expected = conv(x)
    >>> stackable_layers(conv)
    >>> type(conv).__name__, torch.allclose(conv(x), expected, atol=1e-5)
    ('StackableConv2d', True)
    """

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of a batch of images."""
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        vertical, horizontal = int(self.padding[0]), int(self.padding[1])
        x = F.pad(input, (horizontal, horizontal, vertical, vertical)) if vertical or horizontal else input
        bias = self.weight.new_zeros(self.out_channels) if self.bias is None else self.bias
        x_BHWC, weight_RSCO = x.to(dtype).permute(0, 2, 3, 1), self.weight.permute(2, 3, 1, 0)
        if _on_gpu(x_BHWC) and (missing := -self.in_channels % _ALIGNED):
            x_BHWC, weight_RSCO = F.pad(x_BHWC, (0, missing)), F.pad(weight_RSCO, (0, 0, 0, missing))
        y: Tensor = _Convolution.apply(x_BHWC, weight_RSCO, bias)  # type: ignore[no-untyped-call]
        return y.permute(0, 3, 1, 2)


class StackableReluPool(nn.MaxPool2d):
    """`nn.ReLU` and `nn.MaxPool2d(2)`, in either order, for stacked clients."""

    def forward(self, input: Tensor) -> Tensor:
        """The maximum of each 2 × 2 pixels and zero."""
        y, _ = _ReluPool.apply(input.permute(0, 2, 3, 1))  # type: ignore[no-untyped-call]
        pooled: Tensor = y.permute(0, 3, 1, 2)
        return pooled


class _ReluPool(torch.autograd.Function):
    @staticmethod
    def forward(x_NHWC: Tensor) -> tuple[Tensor, Tensor]:
        y, where = relu_pool(x_NHWC.contiguous())
        return y, where

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.rows, ctx.columns = inputs[0].shape[1:3]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        of_x: Tensor = _Unpool.apply(gradients[0], ctx.saved_tensors[0], ctx.rows, ctx.columns)  # type: ignore[no-untyped-call]
        return of_x

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Any, Any]:
        found = relu_pool(_joined(x, in_dims[0], info.batch_size))
        return tuple(one.view(info.batch_size, -1, *one.shape[1:]) for one in found), (0, 0)


class _Unpool(torch.autograd.Function):
    @staticmethod
    def forward(g_NPQC: Tensor, where_NPQC: Tensor, rows: int, columns: int) -> Tensor:
        of_x: Tensor = relu_unpool(g_NPQC.contiguous(), where_NPQC.contiguous(), rows, columns)
        return of_x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Saves nothing, as second derivatives are not needed."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], g: Tensor, where: Tensor, rows: int, columns: int) -> tuple[Any, Any]:
        joined = (_joined(t, dim, info.batch_size) for t, dim in zip((g, where), in_dims[:2], strict=True))
        of_x = relu_unpool(*joined, rows, columns)
        return of_x.view(info.batch_size, -1, *of_x.shape[1:]), 0


def _joined(x: Tensor, dim: int | None, K: int) -> Tensor:
    """The images of all clients along one axis."""
    front = x.expand(K, *x.shape) if dim is None else x.movedim(dim, 0)
    return front.flatten(0, 1).contiguous()


class _Stacked(torch.autograd.Function):
    """An operator on many clients' tensors: called for one client, or under `vmap` for all at once."""

    operator: Any

    @classmethod
    def forward(cls, *tensors: Tensor) -> Any:
        found = cls.operator(*(tensor[None] for tensor in tensors))
        return tuple(one[0] for one in found) if isinstance(found, tuple) else found[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Any, Any]:
        K, each = info.batch_size, zip(tensors, in_dims, strict=True)
        found = cls.operator(*(t.expand(K, *t.shape) if dim is None else t.movedim(dim, 0) for t, dim in each))
        return found, (0,) * len(found) if isinstance(found, tuple) else 0


class _Convolution(_Stacked):
    @staticmethod
    def operator(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        # Weights are cast here, not before, so that their gradient stays in 32 bits.
        y: Tensor = stacked_conv(x.contiguous(), w.to(x.dtype).contiguous(), b.contiguous())
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x_BHWC, w_RSCO, b_O = ctx.saved_tensors
        g_BPQO = gradients[0].to(x_BHWC.dtype)
        of_w, of_b = _OfWeights.apply(x_BHWC, g_BPQO)  # type: ignore[no-untyped-call]
        of_x = _OfInputs.apply(g_BPQO, w_RSCO.to(x_BHWC.dtype)) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        return of_x, of_w.to(w_RSCO.dtype), of_b.to(b_O.dtype)


class _OfWeights(_Stacked):
    @staticmethod
    def operator(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        of_w, of_b = stacked_conv_of_weights(x.contiguous(), g.contiguous())
        return of_w.sum(dim=1), of_b.sum(dim=1)


class _OfInputs(_Stacked):
    @staticmethod
    def operator(g: Tensor, w: Tensor) -> Tensor:
        of_x: Tensor = stacked_conv_of_inputs(g.contiguous(), w.contiguous())
        return of_x


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda and x.dtype != torch.float64 and importlib.util.find_spec("triton") is not None


@torch.library.custom_op("fedmrl::stacked_conv", mutates_args=())
def stacked_conv(x_KBHWC: Tensor, w_KRSCO: Tensor, b_KO: Tensor) -> Tensor:
    """Convolves each client's images with its own weights; all tensors are contiguous."""
    if _on_gpu(x_KBHWC):
        from fedmrl.engines import kernels

        return kernels.outputs(x_KBHWC, w_KRSCO, b_KO)
    each = zip(_images(x_KBHWC), _filters(w_KRSCO), b_KO.to(x_KBHWC.dtype), strict=True)
    return torch.stack([F.conv2d(*of_one) for of_one in each]).permute(0, 1, 3, 4, 2).contiguous()


@stacked_conv.register_fake
def _(x_KBHWC: Tensor, w_KRSCO: Tensor, b_KO: Tensor) -> Tensor:
    (K, B, H, W, _), (_, R, S, _, O) = x_KBHWC.shape, w_KRSCO.shape
    return x_KBHWC.new_empty(K, B, H - R + 1, W - S + 1, O)


@torch.library.custom_op("fedmrl::stacked_conv_of_weights", mutates_args=())
def stacked_conv_of_weights(x_KBHWC: Tensor, g_KBPQO: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weights and biases in 32 bits or more, as parts to be summed over their second axis."""
    if _on_gpu(x_KBHWC):
        from fedmrl.engines import kernels

        return kernels.of_weights(x_KBHWC, g_KBPQO)
    wide = torch.promote_types(x_KBHWC.dtype, torch.float32)
    (_, _, H, W, C), (_, _, P, Q, O) = x_KBHWC.shape, g_KBPQO.shape
    shape = (O, C, H - P + 1, W - Q + 1)
    each = zip(_images(x_KBHWC.to(wide)), _images(g_KBPQO.to(wide)), strict=True)
    of_w = torch.stack([conv2d_weight(images, shape, upper) for images, upper in each])  # type: ignore[no-untyped-call]
    return of_w.permute(0, 3, 4, 2, 1)[:, None].contiguous(), g_KBPQO.sum(dim=(1, 2, 3), dtype=wide)[:, None]


@stacked_conv_of_weights.register_fake
def _(x_KBHWC: Tensor, g_KBPQO: Tensor) -> tuple[Tensor, Tensor]:
    (K, B, H, W, C), (_, _, P, Q, O) = x_KBHWC.shape, g_KBPQO.shape
    R, S, parts = H - P + 1, W - Q + 1, 1
    if _on_gpu(x_KBHWC):
        from fedmrl.engines import kernels

        parts = kernels.shares(K, B * P * Q, R * S * C, O)[1]
    wide = torch.promote_types(x_KBHWC.dtype, torch.float32)
    return x_KBHWC.new_empty(K, parts, R, S, C, O, dtype=wide), x_KBHWC.new_empty(K, parts, O, dtype=wide)


@torch.library.custom_op("fedmrl::stacked_conv_of_inputs", mutates_args=())
def stacked_conv_of_inputs(g_KBPQO: Tensor, w_KRSCO: Tensor) -> Tensor:
    """The gradient with respect to the images."""
    if _on_gpu(g_KBPQO):
        from fedmrl.engines import kernels

        return kernels.of_inputs(g_KBPQO, w_KRSCO)
    each = zip(_images(g_KBPQO), _filters(w_KRSCO), strict=True)
    return torch.stack([F.conv_transpose2d(upper, filters) for upper, filters in each]).permute(0, 1, 3, 4, 2).contiguous()


@stacked_conv_of_inputs.register_fake
def _(g_KBPQO: Tensor, w_KRSCO: Tensor) -> Tensor:
    (K, B, P, Q, _), (_, R, S, C, _) = g_KBPQO.shape, w_KRSCO.shape
    return g_KBPQO.new_empty(K, B, P + R - 1, Q + S - 1, C)


@torch.library.custom_op("fedmrl::relu_pool", mutates_args=())
def relu_pool(x_NHWC: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU, then the maximum of each 2 × 2 pixels, and its position among the four (4: none above zero)."""
    if _on_gpu(x_NHWC):
        from fedmrl.engines import kernels

        return kernels.pooled(x_NHWC)
    _, H, W, _ = x_NHWC.shape
    even = x_NHWC[:, : H // 2 * 2, : W // 2 * 2]
    fours = even.unflatten(1, (-1, 2)).unflatten(3, (-1, 2)).permute(0, 1, 3, 5, 2, 4).flatten(4)  # type: ignore[no-untyped-call]
    best, where = fours.max(dim=-1)
    dead = best <= 0
    return best.masked_fill(dead, 0), where.masked_fill(dead, 4).to(torch.uint8)


@relu_pool.register_fake
def _(x_NHWC: Tensor) -> tuple[Tensor, Tensor]:
    N, H, W, C = x_NHWC.shape
    y = x_NHWC.new_empty(N, H // 2, W // 2, C)
    return y, torch.empty_like(y, dtype=torch.uint8)


@torch.library.custom_op("fedmrl::relu_unpool", mutates_args=())
def relu_unpool(g_NPQC: Tensor, where_NPQC: Tensor, rows: int, columns: int) -> Tensor:
    """The gradient with respect to the input of `relu_pool`."""
    if _on_gpu(g_NPQC):
        from fedmrl.engines import kernels

        return kernels.unpooled(g_NPQC, where_NPQC, rows, columns)
    N, P, Q, C = g_NPQC.shape
    of_x = g_NPQC.new_zeros(N, rows, columns, C)
    for corner in range(4):
        i, j = divmod(corner, 2)
        of_x[:, i : 2 * P : 2, j : 2 * Q : 2] = g_NPQC * (where_NPQC == corner)
    return of_x


@relu_unpool.register_fake
def _(g_NPQC: Tensor, where_NPQC: Tensor, rows: int, columns: int) -> Tensor:
    N, _, _, C = g_NPQC.shape
    return g_NPQC.new_empty(N, rows, columns, C)


def _images(x_KBHWC: Tensor) -> Tensor:
    return x_KBHWC.permute(0, 1, 4, 2, 3)


def _filters(w_KRSCO: Tensor) -> Tensor:
    return w_KRSCO.permute(0, 4, 3, 1, 2)

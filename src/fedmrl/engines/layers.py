"""Layers as they stack best: a convolution whose weights differ from client to client, as one operation for all clients.

Legend of shapes: K clients, B images, H rows, W columns, C channels in, O channels out, R × S window, P × Q outputs.

Under `vmap`, torch makes a grouped convolution of it, which is slow for groups of few channels. Here it is an operator of
its own: Triton kernels on a GPU, torch's convolution client by client elsewhere.
"""

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

_ALIGNED = 4  # channels that a GPU reads at once


def stackable_layers(net: nn.Module) -> None:
    """Let the net's plain convolutions compute by the operators below; names and parameters stay as they are."""
    for module in net.modules():
        if type(module) is nn.Conv2d and _plain(module):
            module.__class__ = StackableConv2d


def _plain(conv: nn.Conv2d) -> bool:
    unit = (1, 1)
    shape = conv.stride == unit and conv.dilation == unit and conv.groups == 1
    return shape and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


class StackableConv2d(nn.Conv2d):
    """What `nn.Conv2d` computes, with stride 1.

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


class _Stacked(torch.autograd.Function):
    """An operator of many clients, called for one; under `vmap`, for all of them at once."""

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
        # Weights come in 32 bits and are rounded here, so that their gradient leaves in 32 bits.
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
    """Each client's images with its own weights; all tensors contiguous."""
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
    """The gradients of weights and biases in 32 bits or more, in parts (their second axis) that are to be summed."""
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

        parts = kernels.shares(K, B * P * Q, R * S * C)[1]
    wide = torch.promote_types(x_KBHWC.dtype, torch.float32)
    return x_KBHWC.new_empty(K, parts, R, S, C, O, dtype=wide), x_KBHWC.new_empty(K, parts, O, dtype=wide)


@torch.library.custom_op("fedmrl::stacked_conv_of_inputs", mutates_args=())
def stacked_conv_of_inputs(g_KBPQO: Tensor, w_KRSCO: Tensor) -> Tensor:
    """The gradient of the images."""
    if _on_gpu(g_KBPQO):
        from fedmrl.engines import kernels

        return kernels.of_inputs(g_KBPQO, w_KRSCO)
    each = zip(_images(g_KBPQO), _filters(w_KRSCO), strict=True)
    return torch.stack([F.conv_transpose2d(upper, filters) for upper, filters in each]).permute(0, 1, 3, 4, 2).contiguous()


@stacked_conv_of_inputs.register_fake
def _(g_KBPQO: Tensor, w_KRSCO: Tensor) -> Tensor:
    (K, B, P, Q, _), (_, R, S, C, _) = g_KBPQO.shape, w_KRSCO.shape
    return g_KBPQO.new_empty(K, B, P + R - 1, Q + S - 1, C)


def _images(x_KBHWC: Tensor) -> Tensor:
    return x_KBHWC.permute(0, 1, 4, 2, 3)


def _filters(w_KRSCO: Tensor) -> Tensor:
    return w_KRSCO.permute(0, 4, 3, 1, 2)

"""Layers as they stack best: a convolution as a matrix product over patches, which many clients' weights join as one.

Legend of shapes: B batch, C channels in, O channels out, H and W image, P and Q its rows and columns after the layer,
M rows of the product, F its inner dimension (a patch, a one for the bias, zeros up to a multiple of 8).

Under `vmap`, a convolution whose weights differ from client to client becomes a grouped one, which is slow for groups of
few channels; a matrix product becomes a batched one, which is what GPUs are made for.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ALIGNED = 8  # numbers to which the product's inner dimension is filled up: unaligned rows halve a GPU's speed
_GROUPS = 64  # into which the sum over a batch is cut, so that it keeps the whole GPU busy


def stackable_layers(net: nn.Module) -> None:
    """Let the net's plain convolutions compute as products over patches; names and parameters stay as they are."""
    for module in net.modules():
        if type(module) is nn.Conv2d and _plain(module):
            module.__class__ = PatchConv2d


def _plain(conv: nn.Conv2d) -> bool:
    unit = (1, 1)
    return (
        conv.stride == unit
        and conv.dilation == unit
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
    )


class PatchConv2d(nn.Conv2d):
    """What `nn.Conv2d` computes, with stride 1.

    >>> conv, x = nn.Conv2d(3, 4, 5), torch.randn(2, 3, 8, 8)
    >>> expected = conv(x)
    >>> stackable_layers(conv)
    >>> type(conv).__name__, torch.allclose(conv(x), expected, atol=1e-5)
    ('PatchConv2d', True)
    """

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of a batch of images."""
        dtype = _compute_dtype(input)
        rows, columns = self.kernel_size
        patches_BPQF = _patches_of(input, rows, columns, self.padding, dtype)  # type: ignore[arg-type]
        matrix_FO = self.weight.to(dtype).permute(2, 3, 1, 0).flatten(0, 2)
        bias_O = matrix_FO.new_zeros(matrix_FO.shape[1]) if self.bias is None else self.bias.to(dtype)
        filled = patches_BPQF.shape[-1] - len(matrix_FO) - 1
        matrix_FO = F.pad(torch.cat([matrix_FO, bias_O[None]]), (0, 0, 0, filled))
        product: Tensor = _Product.apply(patches_BPQF, matrix_FO)  # type: ignore[no-untyped-call]
        return product.permute(0, 3, 1, 2)


def _compute_dtype(x: Tensor) -> torch.dtype:
    """What autocast would compute a convolution in, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _patches_of(x: Tensor, rows: int, columns: int, padding: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The patches of a batch; where two models look at the same batch with the same window, they are cut once."""
    kept: dict[Any, Tensor] = x.__dict__.setdefault("_fedmrl_patches", {})
    key = (rows, columns, padding, dtype)
    if key not in kept:
        vertical, horizontal = padding
        padded = F.pad(x.to(dtype), (horizontal, horizontal, vertical, vertical)) if any(padding) else x.to(dtype)
        kept[key] = _Patches.apply(padded, rows, columns)  # type: ignore[no-untyped-call]
    return kept[key]


class _Patches(torch.autograd.Function):
    """Images to patches, each with a one and zeros behind it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x_BCHW: Tensor, rows: int, columns: int) -> Tensor:
        windows = x_BCHW.unfold(2, rows, 1).unfold(3, columns, 1)  # B C P Q rows columns
        patches = windows.permute(0, 2, 3, 4, 5, 1).flatten(3)
        inner = patches.shape[-1]
        return F.pad(F.pad(patches, (0, 1), value=1.0), (0, -(inner + 1) % _ALIGNED))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.rows, ctx.columns = inputs
        ctx.channels, ctx.height, ctx.width = x.shape[1:]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        # First the columns of a window are laid out, then its rows: 5 + 5 overlapping sums instead of 25.
        inner = ctx.rows * ctx.columns * ctx.channels
        of_patches = gradients[0][..., :inner].unflatten(3, (ctx.rows, ctx.columns, ctx.channels))
        P, Q = of_patches.shape[1:3]
        wide_BPWRC = _total(F.pad(of_patches[:, :, :, :, j], (0, 0, 0, 0, j, ctx.width - Q - j)) for j in range(ctx.columns))
        high_BHWC = _total(F.pad(wide_BPWRC[:, :, :, i], (0, 0, 0, 0, i, ctx.height - P - i)) for i in range(ctx.rows))
        return high_BHWC.permute(0, 3, 1, 2), None, None


def _total(tensors: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, tensors)


class _Product(torch.autograd.Function):
    """Patches times a matrix; the matrix's gradient is summed group by group."""

    generate_vmap_rule = True

    @staticmethod
    def forward(patches_BPQF: Tensor, matrix_FO: Tensor) -> Tensor:
        return (patches_BPQF.flatten(0, 2) @ matrix_FO).unflatten(0, patches_BPQF.shape[:3])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        patches_BPQF, matrix_FO = ctx.saved_tensors
        upper_BPQO = gradients[0].to(patches_BPQF.dtype)
        B, P, Q, inner = patches_BPQF.shape
        groups = _GROUPS if B % _GROUPS == 0 else B
        left = patches_BPQF.reshape(groups, -1, inner).transpose(1, 2)
        of_matrix = torch.bmm(left, upper_BPQO.reshape(groups, -1, matrix_FO.shape[1]))
        wide = torch.promote_types(of_matrix.dtype, torch.float32)
        of_patches = (upper_BPQO.reshape(B * P * Q, -1) @ matrix_FO.T).unflatten(0, (B, P, Q))
        return of_patches, of_matrix.sum(dim=0, dtype=wide).to(matrix_FO.dtype)

"""Triton kernels for convolution and pooling of many clients, each with its own weights, in one launch.

A grouped convolution is far slower for groups of few channels, and copying patches for a matrix product (im2col) costs more
memory traffic than the rest of a step. These kernels read patches in place.

Images are channels-last: K clients, B images, H rows, W columns, C channels. A window of R × S gives P × Q outputs of O
channels. A row of a window, S × C numbers, is contiguous in memory.
"""

# mypy: ignore-errors
# Triton kernels are not quite Python.

import torch
import triton
import triton.language as tl
from torch import Tensor

_LEAST = 16  # the smallest side of a tile for a matrix unit
_CHUNK = 32  # numbers of a patch multiplied at once
_POINTS = 1024  # pixels that one program pools
_PROGRAMS = 768  # enough of them to keep a large GPU busy


@triton.jit
def _outputs_kernel(
    x, w, b, y, B, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    ROWS: tl.constexpr, OS: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    P: tl.constexpr = H - R + 1
    Q: tl.constexpr = W - S + 1
    ROW: tl.constexpr = S * C
    k = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = m < B * P * Q
    start = (m // (P * Q)) * (H * W) + (m % (P * Q)) // Q * W + m % Q
    x += k * B * H * W * C
    w += k * R * ROW * O
    o = tl.arange(0, OS)
    total = tl.zeros((ROWS, OS), dtype=tl.float32)
    for first in tl.static_range(0, R * ROW, CHUNK):
        f = first + tl.arange(0, CHUNK)
        inside = f < R * ROW
        offset = f // ROW * (W * C) + f % ROW
        patch = tl.load(x + start[:, None] * C + offset[None, :], mask=there[:, None] & inside[None, :], other=0.0)
        weights = tl.load(w + f[:, None] * O + o[None, :], mask=inside[:, None] & (o < O)[None, :], other=0.0)
        total = tl.dot(patch, weights, total, input_precision=PRECISION)
    total += tl.load(b + k * O + o, mask=o < O, other=0.0).to(tl.float32)[None, :]
    place = y + k * B * P * Q * O + m[:, None] * O + o[None, :]
    tl.store(place, total.to(y.dtype.element_ty), mask=there[:, None] & (o < O)[None, :])


@triton.jit
def _weights_kernel(
    x, g, of_w, of_b, B, EACH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, ROWS: tl.constexpr, OS: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    P: tl.constexpr = H - R + 1
    Q: tl.constexpr = W - S + 1
    ROW: tl.constexpr = S * C
    block, split, k = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    part = k * tl.num_programs(1) + split
    f = block * TILE + tl.arange(0, TILE)
    inside = f < R * ROW
    offset = f // ROW * (W * C) + f % ROW
    x += k * B * H * W * C
    g += k * B * P * Q * O
    o = tl.arange(0, OS)
    total = tl.zeros((TILE, OS), dtype=tl.float32)
    bias = tl.zeros((OS,), dtype=tl.float32)
    for first in range(0, EACH, ROWS):
        m = split * EACH + first + tl.arange(0, ROWS)
        there = m < B * P * Q
        start = (m // (P * Q)) * (H * W) + (m % (P * Q)) // Q * W + m % Q
        patch = tl.load(x + start[None, :] * C + offset[:, None], mask=inside[:, None] & there[None, :], other=0.0)
        upper = tl.load(g + m[:, None] * O + o[None, :], mask=there[:, None] & (o < O)[None, :], other=0.0)
        total = tl.dot(patch, upper, total, input_precision=PRECISION)
        bias += tl.sum(upper.to(tl.float32), axis=0)
    place = of_w + part * R * ROW * O + f[:, None] * O + o[None, :]
    tl.store(place, total, mask=inside[:, None] & (o < O)[None, :])
    if block == 0:
        tl.store(of_b + part * O + o, bias, mask=o < O)


@triton.jit
def _inputs_kernel(
    g, w, of_x, B, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    ROWS: tl.constexpr, OS: tl.constexpr, CS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    P: tl.constexpr = H - R + 1
    Q: tl.constexpr = W - S + 1
    k = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = m < B * H * W
    n, h, v = m // (H * W), (m % (H * W)) // W, m % W
    g += k * B * P * Q * O
    w += k * R * S * C * O
    o, c = tl.arange(0, OS), tl.arange(0, CS)
    total = tl.zeros((ROWS, CS), dtype=tl.float32)
    for r in tl.static_range(R):
        for s in tl.static_range(S):
            p, q = h - r, v - s
            inside = there & (p >= 0) & (p < P) & (q >= 0) & (q < Q)
            upper = tl.load(
                g + ((n * P + p) * Q + q)[:, None] * O + o[None, :], mask=inside[:, None] & (o < O)[None, :], other=0.0
            )
            weights = tl.load(
                w + ((r * S + s) * C + c)[None, :] * O + o[:, None], mask=(o < O)[:, None] & (c < C)[None, :], other=0.0
            )
            total = tl.dot(upper, weights, total, input_precision=PRECISION)
    place = of_x + k * B * H * W * C + m[:, None] * C + c[None, :]
    tl.store(place, total.to(of_x.dtype.element_ty), mask=there[:, None] & (c < C)[None, :])


@triton.jit
def _pool_kernel(x, y, where, count, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    P: tl.constexpr = H // 2
    Q: tl.constexpr = W // 2
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    c, q, p, n = i % C, i // C % Q, i // (C * Q) % P, i // (C * Q * P)
    first = x + ((n * H + 2 * p) * W + 2 * q) * C + c
    best = tl.load(first, mask=there, other=0.0)
    place = tl.zeros((BLOCK,), dtype=tl.int32)
    for corner in tl.static_range(1, 4):
        value = tl.load(first + (corner // 2 * W + corner % 2) * C, mask=there, other=0.0)
        higher = (value > best) | (value != value)  # noqa: PLR0124, as in torch, NaN and the first of equals win
        best = tl.where(higher, value, best)
        place = tl.where(higher, corner, place)
    dead = best <= 0
    tl.store(y + i, tl.where(dead, 0.0, best), mask=there)
    tl.store(where + i, tl.where(dead, 4, place).to(tl.uint8), mask=there)


@triton.jit
def _unpool_kernel(g, where, of_x, count, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    P: tl.constexpr = H // 2
    Q: tl.constexpr = W // 2
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    c, v, h, n = i % C, i // C % W, i // (C * W) % H, i // (C * W * H)
    inside = there & (h < 2 * P) & (v < 2 * Q)
    pooled = ((n * P + h // 2) * Q + v // 2) * C + c
    place = tl.load(where + pooled, mask=inside, other=4)
    upper = tl.load(g + pooled, mask=inside, other=0.0)
    tl.store(of_x + i, tl.where(place == h % 2 * 2 + v % 2, upper, 0.0), mask=there)


def pooled(x_NHWC: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU, then the maximum of each 2 × 2 pixels, and its position among the four (4: none above zero)."""
    N, H, W, C = x_NHWC.shape
    y = x_NHWC.new_empty(N, H // 2, W // 2, C)
    where = torch.empty_like(y, dtype=torch.uint8)
    _pool_kernel[(triton.cdiv(y.numel(), _POINTS),)](x_NHWC, y, where, y.numel(), H, W, C, _POINTS)
    return y, where


def unpooled(g_NPQC: Tensor, where_NPQC: Tensor, H: int, W: int) -> Tensor:
    """The gradient with respect to the input of `pooled`."""
    N, _, _, C = g_NPQC.shape
    of_x = g_NPQC.new_empty(N, H, W, C)
    _unpool_kernel[(triton.cdiv(of_x.numel(), _POINTS),)](g_NPQC, where_NPQC, of_x, of_x.numel(), H, W, C, _POINTS)
    return of_x


def outputs(x_KBHWC: Tensor, w_KRSCO: Tensor, b_KO: Tensor) -> Tensor:
    """The convolution's outputs, K B P Q O."""
    (K, B, H, W, C), (_, R, S, _, O) = x_KBHWC.shape, w_KRSCO.shape
    y = x_KBHWC.new_empty(K, B, H - R + 1, W - S + 1, O)
    pixels = y[0].numel() // O
    rows = _rows(K, pixels)
    _outputs_kernel[triton.cdiv(pixels, rows), K](
        x_KBHWC, w_KRSCO, b_KO, y, B, H, W, C, O, R, S, rows, _wide(O), _CHUNK, _precision(), num_warps=4, num_stages=2
    )  # fmt: skip
    return y


def of_weights(x_KBHWC: Tensor, g_KBPQO: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weights, K parts R S C O, and of biases, K parts O, in 32 bits; the caller sums the parts."""
    (K, B, H, W, C), (_, _, P, Q, O) = x_KBHWC.shape, g_KBPQO.shape
    R, S = H - P + 1, W - Q + 1
    tile, rows, warps = _weights_tile(O)
    each, splits = shares(K, B * P * Q, R * S * C, O)
    of_w = torch.empty(K, splits, R, S, C, O, device=x_KBHWC.device, dtype=torch.float32)
    of_b = torch.empty(K, splits, O, device=x_KBHWC.device, dtype=torch.float32)
    _weights_kernel[triton.cdiv(R * S * C, tile), splits, K](
        x_KBHWC, g_KBPQO, of_w, of_b, B, each, H, W, C, O, R, S, rows, _wide(O), tile, _precision(), num_warps=warps,
        num_stages=2,
    )  # fmt: skip
    return of_w, of_b


def _weights_tile(channels: int) -> tuple[int, int, int]:
    """The tile of a patch, the pixels at once and the warps of one program, as measured fastest."""
    return (128, 64, 2) if channels <= 16 else (64, 128, 4)


def shares(clients: int, pixels: int, patch: int, channels: int) -> tuple[int, int]:
    """Splits a sum over all pixels into parts: the pixels of each, and the number of parts."""
    tile, rows, _ = _weights_tile(channels)
    blocks = triton.cdiv(patch, tile)
    parts = max(1, min(_PROGRAMS // (clients * blocks), triton.cdiv(pixels, rows)))
    each = triton.cdiv(triton.cdiv(pixels, parts), rows) * rows
    return each, triton.cdiv(pixels, each)


def of_inputs(g_KBPQO: Tensor, w_KRSCO: Tensor) -> Tensor:
    """The gradient of the inputs, K B H W C, from that of the outputs."""
    (K, B, P, Q, O), (_, R, S, C, _) = g_KBPQO.shape, w_KRSCO.shape
    H, W = P + R - 1, Q + S - 1
    of_x = g_KBPQO.new_empty(K, B, H, W, C)
    rows = _rows(K, B * H * W)
    _inputs_kernel[triton.cdiv(B * H * W, rows), K](
        g_KBPQO, w_KRSCO, of_x, B, H, W, C, O, R, S, rows, _wide(O), _wide(C), _precision(), num_warps=4, num_stages=2
    )  # fmt: skip
    return of_x


def _rows(clients: int, pixels: int) -> int:
    """The rows of a product in one program, fewer if the GPU would otherwise be partly idle."""
    return 128 if clients * pixels >= 128 * _PROGRAMS else 64


def _wide(length: int) -> int:
    return max(_LEAST, triton.next_power_of_2(length))


def _precision() -> str:
    """The precision of 32-bit products: three TF32 products are as exact as one in 32 bits, and far faster."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"

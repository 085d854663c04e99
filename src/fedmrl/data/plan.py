"""The order and augmentation of a client's samples, drawn from keyed generators."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmrl.data.partition import Indices
from fedmrl.data.sources import Dataset
from fedmrl.randomness import generator
from fedmrl.training import Augmentation, Phase


@dataclass(frozen=True)
class Plan:
    """One client's samples for one phase: a row of positions for each epoch, with draws for augmentation."""

    order_EN: Indices
    draws_EN8: NDArray[np.float32] | None
    """Eight numbers in [0, 1) for each sample, if images are augmented."""


def plan(seed: int, round_index: int, client: int, own: Indices, phase: Phase) -> Plan:
    """The plan of a client's phase in a round: its samples `own` in a new order for each epoch."""
    rng = generator(seed, f"batches-{phase.subset}", round_index, client)
    order = np.stack([rng.permutation(own) for _ in range(phase.epochs)])
    if not phase.augment.active:
        return Plan(order, None)
    draws = generator(seed, f"augment-{phase.subset}", round_index, client)
    return Plan(order, draws.random((*order.shape, 8), dtype=np.float32))


class Samples:
    """The dataset on a device, stored in its own type; batches are standardised when taken."""

    def __init__(self, data: Dataset, device: torch.device, dtype: torch.dtype, channels_last: bool = False) -> None:
        self.x = torch.from_numpy(np.ascontiguousarray(data.x)).to(device)
        self.channels_last = channels_last and self.x.ndim == 4
        if self.channels_last:
            self.x = self.x.contiguous(memory_format=torch.channels_last)  # batches taken from it inherit the format
        self.y = torch.from_numpy(data.y).to(device)
        shape = (-1,) + (1,) * (data.x.ndim - 2)
        self.mean = torch.tensor(data.mean, device=device, dtype=dtype).reshape(shape)
        self.std = torch.tensor(data.std, device=device, dtype=dtype).reshape(shape)
        self.device, self.dtype = device, dtype
        self.tokens = data.vocabulary is not None

    def raw(self, positions: Indices) -> tuple[Tensor, Tensor]:
        """Inputs in their own type, and labels."""
        index = torch.from_numpy(positions).to(self.device)
        if not self.channels_last:
            return self.x[index], self.y[index]
        return self.x.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2), self.y[index]

    def take(self, positions: Indices) -> tuple[Tensor, Tensor]:
        """Standardised inputs, and labels."""
        x, y = self.raw(positions)
        return x if self.tokens else shown(x, self.mean, self.std), y

    def batches(self, plan: Plan, batch_size: int, augment: Augmentation) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yields epoch, inputs and labels of each step; the last batch of an epoch may be smaller."""
        for epoch, order in enumerate(plan.order_EN):
            for start in range(0, len(order), batch_size):
                stop = start + batch_size
                if plan.draws_EN8 is None:
                    yield epoch, *self.take(order[start:stop])
                else:
                    x, y = self.raw(order[start:stop])
                    draws = torch.from_numpy(plan.draws_EN8[epoch, start:stop]).to(self.device)
                    yield epoch, augmented(x, self.mean, self.std, draws, augment), y


def shown(raw: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Standardises raw samples, in the type of the mean."""
    if raw.ndim < 4 or raw.is_contiguous():
        return (raw.to(mean.dtype) - mean) / std
    # Channels last: whole rows of pixels at once are five times as fast as the few channels of single pixels.
    B, C, H, W = raw.shape
    rows = raw.permute(0, 2, 3, 1).reshape(B * H, W * C).to(mean.dtype)
    wide_mean, wide_std = (moment.expand(C, 1, 1).reshape(C).repeat(W) for moment in (mean, std))
    return ((rows - wide_mean) / wide_std).view(B, H, W, C).permute(0, 3, 1, 2)


def augmented(raw: Tensor, mean: Tensor, std: Tensor, draws_B8: Tensor, augment: Augmentation) -> Tensor:
    """Standardises, flips, erases a rectangle and crops with zero padding, by the draws of each image.

    The order is that of the code of FedMRL's authors. Erased and padded pixels are zero after standardising.
    """
    flip_B, down_B, right_B = draws_B8[:, :3].unbind(dim=1)
    B, C, H, W = raw.shape
    # For each output pixel, its row and column in the flipped image; those outside are padding.
    row_BH = torch.arange(H, device=raw.device).expand(B, H)
    column_BW = torch.arange(W, device=raw.device).expand(B, W)
    if augment.crop:
        offsets = 2 * augment.crop + 1
        row_BH = row_BH + (down_B * offsets).long()[:, None] - augment.crop
        column_BW = column_BW + (right_B * offsets).long()[:, None] - augment.crop
    seen_BHW = _within(row_BH, 0, H)[:, :, None] & _within(column_BW, 0, W)[:, None, :]
    if augment.erase:
        seen_BHW = seen_BHW & ~_erased(draws_B8[:, 3:], augment.erase, row_BH, column_BW, H, W)
    if augment.flip:
        column_BW = torch.where(flip_B[:, None] < 0.5, W - 1 - column_BW, column_BW)
    # All channels of a pixel are gathered as one row, ten times as fast as one by one; the last row is zero.
    pixels = shown(raw, mean, std).permute(0, 2, 3, 1).reshape(-1, C)
    pixels = torch.cat([pixels, pixels.new_zeros(1, C)])
    first_B = torch.arange(B, device=raw.device) * (H * W)
    place_BHW = first_B[:, None, None] + row_BH[:, :, None] * W + column_BW[:, None, :]
    place_BHW = torch.where(seen_BHW, place_BHW, B * H * W)
    return pixels.index_select(0, place_BHW.flatten()).view(B, H, W, C).permute(0, 3, 1, 2)


def _erased(draws_B5: Tensor, chance: float, row_BH: Tensor, column_BW: Tensor, H: int, W: int) -> Tensor:
    """The pixels to erase: a rectangle of 4% to 20% of the image, with an aspect ratio of 1:2 to 2:1."""
    whether_B, area_B, ratio_B, top_B, left_B = draws_B5.unbind(dim=1)
    share_B = 0.04 + (0.2 - 0.04) * area_B
    aspect_B = torch.exp(math.log(0.5) + ratio_B * math.log(2 / 0.5))
    pixels_B = H * W * share_B
    height_B = (pixels_B * aspect_B).sqrt().round().clamp(1, H)
    width_B = (pixels_B / aspect_B).sqrt().round().clamp(1, W)
    top_B, left_B = (top_B * (H - height_B + 1)).floor(), (left_B * (W - width_B + 1)).floor()
    in_rows_BH = _within(row_BH, top_B[:, None], (top_B + height_B)[:, None])
    in_columns_BW = _within(column_BW, left_B[:, None], (left_B + width_B)[:, None])
    return in_rows_BH[:, :, None] & in_columns_BW[:, None, :] & (whether_B < chance)[:, None, None]


def _within(place: Tensor, first: Tensor | int, end: Tensor | int) -> Tensor:
    return (place >= first) & (place < end)

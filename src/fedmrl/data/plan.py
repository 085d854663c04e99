"""In what order a client sees its samples, and what happens to them on the way: all drawn from keyed generators."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedmrl.data.partition import Indices
from fedmrl.data.sources import Dataset
from fedmrl.randomness import generator
from fedmrl.training import Augmentation, Phase


@dataclass(frozen=True)
class Plan:
    """One client's samples for one phase: a row of positions for each epoch, and how each is augmented."""

    order_EN: Indices
    draws_EN8: NDArray[np.float32] | None
    """Eight numbers in [0, 1) for each sample shown, if anything is done to images."""


def plan(seed: int, round_index: int, client: int, own: Indices, phase: Phase) -> Plan:
    """What `client` sees in this round's phase: `own` in a new order each epoch."""
    rng = generator(seed, f"batches-{phase.subset}", round_index, client)
    order = np.stack([rng.permutation(own) for _ in range(phase.epochs)])
    if not phase.augment.active:
        return Plan(order, None)
    draws = generator(seed, f"augment-{phase.subset}", round_index, client)
    return Plan(order, draws.random((*order.shape, 8), dtype=np.float32))


class Samples:
    """The dataset on a device, stored as it came; a batch is standardised when it is taken."""

    def __init__(self, data: Dataset, device: torch.device, dtype: torch.dtype, channels_last: bool = False) -> None:
        self.x = torch.from_numpy(np.ascontiguousarray(data.x)).to(device)
        if channels_last and self.x.ndim == 4:
            self.x = self.x.contiguous(memory_format=torch.channels_last)  # and so are the batches that are taken of it
        self.y = torch.from_numpy(data.y).to(device)
        shape = (-1,) + (1,) * (data.x.ndim - 2)
        self.mean = torch.tensor(data.mean, device=device, dtype=dtype).reshape(shape)
        self.std = torch.tensor(data.std, device=device, dtype=dtype).reshape(shape)
        self.device, self.dtype = device, dtype

    def take(self, positions: Indices) -> tuple[Tensor, Tensor]:
        """Inputs and labels, standardised."""
        index = torch.from_numpy(positions).to(self.device)
        return shown(self.x[index], self.mean, self.std), self.y[index]

    def batches(self, plan: Plan, batch_size: int, augment: Augmentation) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Epoch, inputs and labels of each step; the last batch of an epoch may be smaller."""
        for epoch, order in enumerate(plan.order_EN):
            for start in range(0, len(order), batch_size):
                stop = start + batch_size
                if plan.draws_EN8 is None:
                    yield epoch, *self.take(order[start:stop])
                else:
                    index = torch.from_numpy(order[start:stop]).to(self.device)
                    draws = torch.from_numpy(plan.draws_EN8[epoch, start:stop]).to(self.device)
                    yield epoch, augmented(self.x[index], self.mean, self.std, draws, augment), self.y[index]


def shown(raw: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Samples as they came, standardised, in the type of the mean."""
    return (raw.to(mean.dtype) - mean) / std


def augmented(raw: Tensor, mean: Tensor, std: Tensor, draws_B8: Tensor, augment: Augmentation) -> Tensor:
    """Flip, crop out of a black border, standardise, then blank a rectangle: as the draws say, a row for each image."""
    flip_B, row_B, column_B = draws_B8[:, :3].unbind(dim=1)
    B, C, H, W = raw.shape
    row_BH = torch.arange(H, device=raw.device).expand(B, H)
    column_BW = torch.arange(W, device=raw.device).expand(B, W)
    if augment.flip:
        column_BW = torch.where(flip_B[:, None] < 0.5, W - 1 - column_BW, column_BW)
    if augment.crop:
        offsets = 2 * augment.crop + 1
        raw = F.pad(raw, [augment.crop] * 4)
        row_BH = row_BH + (row_B * offsets).long()[:, None]
        column_BW = column_BW + (column_B * offsets).long()[:, None]
    image = torch.arange(B, device=raw.device)[:, None, None, None]
    channel = torch.arange(C, device=raw.device)[None, :, None, None]
    x = shown(raw[image, channel, row_BH[:, None, :, None], column_BW[:, None, None, :]], mean, std)
    return x * ~_rectangles(draws_B8[:, 3:], augment.erase, H, W) if augment.erase else x


def _rectangles(draws_B5: Tensor, chance: float, H: int, W: int) -> Tensor:
    """Which pixels are blanked: 2% to 33% of an image, sides in a ratio of 0.3 to 3.3, cut to fit where too long."""
    whether_B, area_B, ratio_B, top_B, left_B = draws_B5.unbind(dim=1)
    share_B = 0.02 + (0.33 - 0.02) * area_B
    aspect_B = torch.exp(math.log(0.3) + ratio_B * math.log(3.3 / 0.3))
    height_B = (H * (share_B * aspect_B).sqrt()).round().clamp(1, H)
    width_B = (W * (share_B / aspect_B).sqrt()).round().clamp(1, W)
    in_rows_BH = _within(H, (top_B * (H - height_B + 1)).floor(), height_B)
    in_columns_BW = _within(W, (left_B * (W - width_B + 1)).floor(), width_B)
    return (in_rows_BH[:, :, None] & in_columns_BW[:, None, :] & (whether_B < chance)[:, None, None])[:, None]


def _within(length: int, first_B: Tensor, count_B: Tensor) -> Tensor:
    place = torch.arange(length, device=first_B.device)[None]
    return (place >= first_B[:, None]) & (place < (first_B + count_B)[:, None])

"""Models of many kinds for the tiny images, and for rows of tokens, with representations of different sizes."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedmrl.models import CNNS


class ResNet8(nn.Module):
    """Three residual blocks of two convolutions with group normalisation; a representation of 24."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList(Block(*widths) for widths in ((8, 8), (8, 16), (16, 24)))
        self.fc = nn.Linear(24, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean(dim=(2, 3)))


class Block(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        stride = 1 if before == after else 2
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(4, after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1), nn.GroupNorm(4, after)
        self.short = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride)

    def forward(self, x):
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.short(x))


class ViT(nn.Module):
    """Patches of 8×8 pixels, a class token and one layer of attention; a representation of 16."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 8, 8)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(torch.randn(1, 5, 16) * 0.02)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        return self.head(self.layer(x)[:, 0])


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 12), nn.ReLU(), nn.Linear(12, 4))


class Frozen(nn.Module):
    """An extractor that stays as it is, with a header that learns; a representation of 10."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(256, 10), nn.Tanh()).requires_grad_(False)
        self.head = nn.Linear(10, 4)

    def forward(self, x):
        return self.head(self.body(x))


CNN3 = CNNS["cnn-3"].model_copy(update={"conv1": 2, "conv2": 3, "fc1": 9, "fc2": 8})


def cnn3():
    """A small CNN-3, as a module."""
    return CNN3.build((1, 16, 16), 4)


class MeanText(nn.Module):
    """The mean of embeddings; a representation of 6."""

    def __init__(self):
        super().__init__()
        self.embedding, self.fc1, self.fc2 = nn.Embedding(30, 7), nn.Linear(7, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(self.embedding(x).mean(1))))


class ConvText(nn.Module):
    """A convolution over embeddings; a representation of 9."""

    def __init__(self):
        super().__init__()
        self.embedding, self.conv, self.fc = nn.Embedding(40, 5), nn.Conv1d(5, 9, 3), nn.Linear(9, 3)

    def forward(self, x):
        return self.fc(F.relu(self.conv(self.embedding(x).transpose(1, 2))).amax(2))


def texts():
    """Rows of twelve tokens, whose class decides which tokens are frequent."""
    rng = np.random.default_rng(1)
    y = np.arange(90) % 3
    x = np.where(rng.random((90, 12)) < 0.5, rng.integers(0, 30, (90, 12)), y[:, None] * 10 + rng.integers(0, 10, (90, 12)))
    return x, np.array(["good", "bad", "odd"])[y]

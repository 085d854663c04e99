"""The smallest federation that has everything: images of noise with a pattern for each class, and tiny networks."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from fedmrl import Recipe, load_recipe
from fedmrl.methods import METHODS

CNNS = [{"conv1": 2, "conv2": 3, "fc1": 8, "fc2": 6}, {"conv1": 3, "conv2": 2, "fc1": 5, "fc2": 6}]
ALL_METHODS = sorted(METHODS)


@cache
def data_file(samples: int = 96, classes: int = 4) -> Path:
    rng = np.random.default_rng(7)
    y = np.arange(samples) % classes
    patterns = rng.normal(size=(classes, 1, 16, 16))
    x = (patterns[y] * 40 + rng.normal(size=(samples, 1, 16, 16)) * 20 + 128).clip(0, 255).astype(np.uint8)
    path = Path(mkdtemp()) / "tiny.npz"
    np.savez(path, x=x, y=y)
    return path


def tiny_recipe(method: str = "fedmrl", **settings: object) -> Recipe:
    """A recipe on the tiny data; `method__d1=3` sets `method.d1`."""
    changes = {
        "method.name": method,
        "rounds": 3,
        "clients": 4,
        "participation": 0.5,
        **({} if "data__name" in settings else {"data.name": "arrays", "data.file": str(data_file())}),
        "partition.classes_per_client": 2,
        "models.local": CNNS,
        "training.batch_size": 5,
        "training.epochs": 2,
        "training.lr": 0.05,
        "training.momentum": 0.5,
        "training.precision": "fp64",
        "evaluation.every": 2,
        **({"method.d1": 3} if method == "fedmrl" else {}),
    }
    return load_recipe("quickstart", changes | {key.replace("__", "."): value for key, value in settings.items()})

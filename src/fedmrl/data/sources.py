"""Where samples come from: scikit-learn's digits, the official CIFAR files, or the user's own arrays."""

import hashlib
import os
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field

from fedmrl.errors import UserError, cause
from fedmrl.files import user_path
from fedmrl.table import Table

DataName = Literal["digits", "cifar10", "cifar100", "arrays"]


class DataTable(Table):
    """The recipe's `[data]` table."""

    name: DataName = Field("digits", description="which data")
    dir: str | None = Field(None, description="the folder with CIFAR's files; else $FEDMRL_DATA, else ~/.cache/fedmrl")
    file: str | None = Field(None, description="for arrays: an .npz with x and y, and x_test and y_test if there are")
    mean: list[float] | None = Field(None, description="subtracted from each channel or feature, in raw units; else measured")
    std: list[Annotated[float, Field(gt=0)]] | None = Field(None, description="divides each channel or feature; else measured")


@dataclass(frozen=True)
class Dataset:
    """All samples, as they were stored (images as uint8), training samples first, then the official test samples."""

    name: str
    x: NDArray[np.generic]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    official_train: int
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    """For each channel (of vectors: each number), in the units of `x`: what a batch is standardised by when it is taken."""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise UserError(f"{self.name} has {len(self.x)} samples and {len(self.y)} labels; give one label for each sample")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])


def load(table: DataTable) -> Dataset:
    """The dataset that a recipe's `[data]` table names."""
    x, y, classes, official_train = _SOURCES[table.name](table)
    channels = x.shape[1]
    for name, given in (("mean", table.mean), ("std", table.std)):
        if given is not None and len(given) != channels:
            what = "channels" if x.ndim > 2 else "features"
            raise UserError(f"data.{name} has {len(given)} values; {table.name} has {channels} {what}, so give {channels}")
    measured_mean, measured_std = CIFAR_MOMENTS[table.name] if table.name in CIFAR_MOMENTS else moments(x)
    mean = table.mean if table.mean is not None else measured_mean
    std = table.std if table.std is not None else measured_std
    return Dataset(table.name, x, y, classes, official_train, np.array(mean), np.array(std))


def moments(x: NDArray[np.generic]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each channel; a channel that never varies is left unscaled."""
    by_channel = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
    if x.dtype == np.uint8:  # counting values is exact, and needs no copy of the data in double precision
        values = np.arange(256.0)
        counts = [torch.bincount(torch.from_numpy(channel), minlength=256).numpy() for channel in by_channel]
        share = np.stack(counts) / by_channel.shape[1]
        mean, squares = share @ values, share @ values**2
    else:
        squared = by_channel.astype(np.float64)
        np.square(squared, out=squared)
        mean, squares = by_channel.mean(axis=1, dtype=np.float64), squared.mean(axis=1)
    std = np.sqrt(np.maximum(squares - mean**2, 0))
    return mean, np.where(std > 1e-12, std, 1.0)


Source = tuple[NDArray[np.generic], NDArray[np.int64], tuple[str, ...], int]


def _digits(table: DataTable) -> Source:
    """1,797 hand-written digits, scaled up to 3×32×32 so that the paper's networks run on them unchanged."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float()[:, None] * (255 / 16)
    large = F.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
    x = large.round().clamp(0, 255).to(torch.uint8).expand(-1, 3, -1, -1).contiguous().numpy()
    return x, bunch.target.astype(np.int64), tuple(str(d) for d in range(10)), len(x)


# The official files with their MD5s, and where each record's label and pixels start.
CIFAR_FILES: dict[str, dict[str, str]] = {
    "cifar10": {
        "cifar-10-batches-bin/data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "cifar-10-batches-bin/data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "cifar-10-batches-bin/data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "cifar-10-batches-bin/data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "cifar-10-batches-bin/data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "cifar-10-batches-bin/test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    "cifar100": {
        "cifar-100-binary/train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
        "cifar-100-binary/test.bin": "4499cfba6c016c1be1438163640a0898",
    },
}
# What `moments` gives for the files above: to measure it anew takes longer than to read them.
CIFAR_MOMENTS: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "cifar10": (
        (125.42653860677083, 123.0767458170573, 114.03020576171875),
        (62.97765965300962, 62.06417954810929, 66.70611058298451),
    ),
    "cifar100": (
        (129.37731888020838, 124.10583863932293, 112.47758569335937),
        (68.20947949440401, 65.43124043036813, 70.45866993552485),
    ),
}
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def data_dir(given: str | None) -> Path:
    """The folder for downloaded data: the one given, else `$FEDMRL_DATA`, else `~/.cache/fedmrl`."""
    return user_path(given or os.environ.get("FEDMRL_DATA") or Path.home() / ".cache" / "fedmrl", "data.dir")


def verified(path: Path, md5: str) -> bytes:
    """The file's content, if it is what it should be."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise UserError(
            f"{path} is not the official file (its MD5 differs): it is damaged or was changed; delete it and fetch it again"
        )
    return content


def _cifar(table: DataTable) -> Source:
    folder, files = data_dir(table.dir), CIFAR_FILES[table.name]
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"{folder / missing[0]} is missing{more}; fetch them with 'fedmrl data {table.name} --dir "
            f"{shlex.quote(str(folder))}', or set data.dir to the folder that holds {Path(missing[0]).parent}"
        )
    label, width = (0, 1) if table.name == "cifar10" else (1, 2)
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(lambda file: np.frombuffer(verified(folder / file, files[file]), np.uint8), files))
    records = np.concatenate(parts).reshape(-1, width + 3072)
    x = np.ascontiguousarray(records[:, width:]).reshape(-1, 3, 32, 32)
    return x, records[:, label].astype(np.int64), _cifar_names(table.name, folder), 50_000


def _cifar_names(name: str, folder: Path) -> tuple[str, ...]:
    if name == "cifar10":
        return CIFAR10_NAMES
    path = folder / "cifar-100-binary" / "fine_label_names.txt"
    names = tuple(path.read_text().split()) if path.is_file() else ()
    return names if len(names) == 100 else tuple(str(label) for label in range(100))


def _arrays(table: DataTable) -> Source:
    if table.file is None:
        raise UserError("data.name is 'arrays', so data.file must name an .npz file with arrays x and y")
    path = user_path(table.file, "data.file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; data.file must name an .npz file with arrays x and y") from None
    except Exception as error:  # zip, zlib, NumPy and the memory each fail in ways of their own
        raise UserError(f"{path} cannot be read as an .npz file of plain arrays ({cause(error)})") from error
    arrays = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
    for name in ("x", "y"):
        if name not in arrays:
            raise UserError(f"{path} has no array {name!r} (it has {', '.join(arrays) or 'none'}); save it with x=…, y=…")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise UserError(f"{path} has only one of x_test and y_test; give both or neither")
    pairs = [_pair(path, arrays, "")] + ([_pair(path, arrays, "_test")] if "x_test" in arrays else [])
    if len({x.shape[1:] for x, _ in pairs}) > 1:
        raise UserError(f"{path}: samples of x have shape {pairs[0][0].shape[1:]}, those of x_test {pairs[1][0].shape[1:]}")
    x, y = pairs[0] if len(pairs) == 1 else (np.concatenate(both) for both in zip(*pairs, strict=True))
    labels = np.unique(y)
    classes = len(labels)
    if labels[-1] != classes - 1:
        absent = int(np.flatnonzero(labels != np.arange(classes))[0])
        raise UserError(f"{path}: y goes up to {labels[-1]} but no sample has label {absent}; number the classes 0, 1, 2 …")
    return x, y, tuple(str(label) for label in range(classes)), len(pairs[0][0])


def _pair(path: Path, arrays: dict[str, NDArray[np.generic]], suffix: str) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """One pair of arrays from the user's file, checked; images without channels get one."""
    x, y = arrays[f"x{suffix}"], arrays[f"y{suffix}"]
    if y.ndim != 1 or x.ndim == 0 or len(x) != len(y) or not len(y):
        raise UserError(f"{path}: y{suffix} must have one label for each sample: x{suffix} is {x.shape}, y{suffix} {y.shape}")
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() >= 2**62:
        raise UserError(f"{path}: y{suffix} must be whole numbers from 0, one for each class (it is {y.dtype})")
    if x.ndim not in (2, 3, 4) or min(x.shape) == 0:
        raise UserError(f"{path}: x{suffix} has shape {x.shape}; expected samples × channels × height × width, or × features")
    if x.ndim == 3:
        x = x[:, None]
    if not np.issubdtype(x.dtype, np.number) or np.issubdtype(x.dtype, np.complexfloating):
        raise UserError(f"{path}: x{suffix} must be numbers, and it is {x.dtype}")
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        if not np.isfinite(x).all():
            raise UserError(f"{path}: x{suffix} has values that are NaN or infinite")
    return x, y.astype(np.int64, copy=False)


_SOURCES: dict[str, Callable[[DataTable], Source]] = {
    "digits": _digits,
    "cifar10": _cifar,
    "cifar100": _cifar,
    "arrays": _arrays,
}

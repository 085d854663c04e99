"""CIFAR-10 and CIFAR-100, from their official binary files."""

import hashlib
import os
import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedmrl.data.sources import SOURCES, DataSource, Moments, Samples
from fedmrl.errors import UserError
from fedmrl.files import user_path
from fedmrl.table import IS_PATH

# The official files with their MD5s.
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
# `moments` of the files above: computing them takes longer than reading the files.
CIFAR_MOMENTS: Mapping[str, Moments] = {
    "cifar10": (
        [125.42653860677083, 123.0767458170573, 114.03020576171875],
        [62.97765965300962, 62.06417954810929, 66.70611058298451],
    ),
    "cifar100": (
        [129.37731888020838, 124.10583863932293, 112.47758569335937],
        [68.20947949440401, 65.43124043036813, 70.45866993552485],
    ),
}
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def data_dir(given: str | None) -> Path:
    """The folder for downloaded data: the one given, else `$FEDMRL_DATA`, else `~/.cache/fedmrl`."""
    return user_path(given or os.environ.get("FEDMRL_DATA") or Path.home() / ".cache" / "fedmrl", "data.dir")


def verified(path: Path, md5: str) -> bytes:
    """Reads a file after checking its MD5."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise UserError(
            f"{path} is not the official file (its MD5 differs): it is damaged or was changed; delete it and fetch it again"
        )
    return content


class _Cifar(DataSource):
    """60,000 images of 3×32×32; the first 50,000 are the official training set."""

    dir: Annotated[str | None, IS_PATH] = Field(
        None, description="the folder with the official files; else $FEDMRL_DATA, else ~/.cache/fedmrl"
    )

    def read(self) -> Samples:
        """Reads the official files, each verified."""
        folder, files = data_dir(self.dir), CIFAR_FILES[self.name]
        missing = [file for file in files if not (folder / file).is_file()]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(
                f"{folder / missing[0]} is missing{more}; fetch them with 'fedmrl data {self.name} --dir "
                f"{shlex.quote(str(folder))}', or set data.dir to the folder that holds {Path(missing[0]).parent}"
            )
        label, width = (0, 1) if self.name == "cifar10" else (1, 2)
        with ThreadPoolExecutor() as pool:
            parts = list(pool.map(lambda file: np.frombuffer(verified(folder / file, files[file]), np.uint8), files))
        records = np.concatenate(parts).reshape(-1, width + 3072)
        x = np.ascontiguousarray(records[:, width:]).reshape(-1, 3, 32, 32)
        y = records[:, label].astype(np.int64)
        return Samples(x, y, _cifar_names(self.name, folder), 50_000, CIFAR_MOMENTS[self.name])


class Cifar10(_Cifar):
    """CIFAR-10: 60,000 photos in 10 classes; 'fedmrl data cifar10' downloads them."""

    name: ClassVar[str] = "cifar10"


class Cifar100(_Cifar):
    """CIFAR-100: 60,000 photos in 100 classes; 'fedmrl data cifar100' downloads them."""

    name: ClassVar[str] = "cifar100"


for _source in (Cifar10, Cifar100):
    SOURCES.add(_source.name, _source, module=__name__)


def _cifar_names(name: str, folder: Path) -> tuple[str, ...]:
    if name == "cifar10":
        return CIFAR10_NAMES
    path = folder / "cifar-100-binary" / "fine_label_names.txt"
    names = tuple(path.read_text().split()) if path.is_file() else ()
    return names if len(names) == 100 else tuple(str(label) for label in range(100))

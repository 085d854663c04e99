"""Image folders: a folder for each class, with PNG and JPEG files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrl.data.raw import TESTS, Part, Raw, Size, train_and_test
from fedmrl.errors import UserError, cause
from fedmrl.memory import check_room

SUFFIXES = (".png", ".jpg", ".jpeg")
_SCALE = "set data.size = [height, width] to scale all ('fedmrl init': --size 32x32)"


def read_images(folder: Path, size: Size | None) -> Part:
    """The images of a folder: a folder for each class, or `train` and a test set with one for each class."""
    if halves := _halves(folder):
        return train_and_test(halves, str(folder), None, size)
    return Part(_of_classes(folder, size))


def _halves(folder: Path) -> dict[str, Path]:
    """The folders of training and test samples by name, if the folder has nothing else."""
    found = {path.name: path for path in _folders(folder)}
    return found if "train" in found and found.keys() <= {"train", *TESTS} else {}


def files_read(folder: Path) -> list[Path]:
    """The files that `read_images` reads in a folder, sorted."""
    halves = _halves(folder)
    tests = [name for name in TESTS if name in halves]
    parts = [halves[name] for name in ("train", *tests[:1])] if halves else [folder]
    return sorted(file for part in parts for of_class in _folders(part) for file in _images(of_class))


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _of_classes(folder: Path, size: Size | None) -> Raw:
    by_class = {path.name: _images(path) for path in _folders(folder)}
    files = [file for found in by_class.values() for file in found]
    if not files:
        inside = " (it has images, but no folders)" if _images(folder) else ""
        raise UserError(f"{folder} has no folders with PNG or JPEG images, one for each class{inside}")
    if empty := [name for name, found in by_class.items() if not found]:
        raise UserError(f"{folder / empty[0]} has no PNG or JPEG images; remove the folder, or fill it")
    labels = np.array([name for name, found in by_class.items() for _ in found], dtype=object)
    return Raw(pixels(files, size, _SCALE), labels, scaled=size is not None)


def _images(folder: Path) -> list[Path]:
    there = (path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))
    return sorted(path for path in there if path.is_file())


def read_unlabelled(path: Path, size: Size | None) -> NDArray[np.uint8]:
    """An image, or those of a folder and of the folders in it, in the order of their names."""
    files = [path] if path.is_file() else [*_images(path), *(file for folder in _folders(path) for file in _images(folder))]
    if not files:
        raise UserError(f"{path} has no PNG or JPEG images")
    return pixels(files, size, "give images of one size")


def pixels(files: Sequence[Path], size: Size | None, advice: str) -> NDArray[np.uint8]:
    """Images as samples × channels × height × width: one channel if all are grey, else three.

    `advice` ends the sentence on images of two sizes.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError("image folders need the package Pillow; install it with: pip install 'fedmrl[images]'") from error
    opened: list[Any] = []
    for file in files:
        try:
            with Image.open(file) as image:
                deep = image.mode[0] in "IF"
                kept = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
        except Exception as error:  # Pillow raises many kinds for damaged files
            raise UserError(f"{file} cannot be read as an image ({cause(error)}); remove it") from error
        if deep:  # bytes would lose what they show
            raise UserError(f"{file} has more than 8 bits for each pixel; give such images as arrays, or save them with 8 bits")
        if size is not None and kept.size != (size[1], size[0]):
            kept = kept.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        if opened and kept.size != opened[0].size:
            raise UserError(f"{file} has {_size(kept)} pixels, and {files[0].name} {_size(opened[0])}; {advice}")
        if not opened:  # the images, their arrays, and these together in two orders of channels
            check_room(str(files[0].parent), 4 * len(files) * kept.width * kept.height * len(kept.getbands()))
        opened.append(kept)
    mode = "L" if all(image.mode == "L" for image in opened) else "RGB"
    arrays = [np.asarray(image if image.mode == mode else image.convert(mode)) for image in opened]
    stacked = np.stack(arrays)
    return stacked[:, None] if mode == "L" else np.ascontiguousarray(np.moveaxis(stacked, -1, 1))


def _size(image: Any) -> str:
    return f"{image.size[1]}×{image.size[0]}"

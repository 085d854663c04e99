"""Atomic writing of files, checksums, and files that a recipe names."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmrl.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, then replaces `path` by it atomically."""
    path = path.resolve() if path.is_symlink() else path  # replace the target, not the link
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file; choose another")
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write_whole(path: Path, text: str) -> None:
    """Replaces a file's text atomically."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def user_path(text: str | Path, what: str) -> Path:
    """Expands `~` in a user's path; `what` names the path in errors."""
    if "\0" in str(text):
        raise UserError(f"{what} is {str(text)!r:.80}, and no path can have a null character; take it out")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UserError(f"{what}: {str(text)!r} names the home folder of an unknown user; write the path out") from error


def output_path(given: Any, what: str) -> Path:
    """A path to write to, as given from Python; `what` names the argument in errors."""
    try:
        if not isinstance(given, str | Path) or not str(given) or "\0" in str(given):
            raise ValueError
        os.fsencode(given)
        Path(given).exists()  # raises for a name that the file system cannot have
    except OSError as error:
        raise UserError(f"{what} is {given!r:.80}, which cannot be used ({error.strerror}); choose another") from error
    except ValueError as error:
        raise UserError(f"{what} is {given!r:.80}; it must name a file or folder") from error
    return Path(given)


def sha256_of(path: Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_bytes(content: bytes) -> str:
    """The SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_text(text: str) -> str:
    """A text's SHA-256."""
    return sha256_of_bytes(text.encode())


def sha256_of_json(plain: Mapping[str, Any]) -> str:
    """The SHA-256 of plain data as JSON, whatever the order of its keys."""
    return sha256_of_text(json.dumps(plain, sort_keys=True))


def check_sha256(path: Path, found: str, written: str) -> None:
    """Raises `UserError` if the checksums differ; `written` is empty for files of older versions."""
    if written and found != written:
        raise UserError(f"{path} is damaged or was changed: its SHA-256 differs from the recorded one")


def read_json(path: Path, key: str) -> Any:
    """Reads a JSON file that a recipe's key names."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}, named by {key}, cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, named by {key}, is not JSON ({error})") from error

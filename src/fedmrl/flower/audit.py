"""The audit log: what really came in and what really left, a JSON line for each message and each of its arrays.

Each line has the SHA-256 of the one before, and `audit.head` the number of lines and the last one's SHA-256, so that a
line that was changed or removed shows. It protects against accidents, not against somebody who may write both files.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from fedmrl.errors import UserError
from fedmrl.files import sha256_of_bytes, write_whole
from fedmrl.flower.frame import Arrays, Frame, encode
from fedmrl.schema import Part, first_problem

_FIRST = "0" * 64
_WRITTEN_OUT = ("loss", "finite", "flops", "correct", "train", "test", "classes", "reason", "sentence")
"""Fields of a reply that tell of the client's data, or why there is none, and are no arrays."""


class Entry(Part):
    """A line of the log: a message, or one of its arrays."""

    time: str
    run: str
    round: int | None
    uid: int
    direction: Literal["in", "out"]
    type: str
    bytes: int
    sha256: str
    previous: str
    name: str = ""
    shape: Annotated[list[int], Field(default_factory=list)]


class Passed(NamedTuple):
    """A message that passed the socket."""

    direction: Literal["in", "out"]
    message: Mapping[str, Any]
    arrays: Arrays


class Audit:
    """Appends to an audit log."""

    def __init__(self, folder: Path) -> None:
        self.path, self.head = folder / "audit.jsonl", folder / "audit.head"
        self._cut_torn_line()
        lines = _checked_lines(self.path, self.head)
        self.count, self.last = len(lines), sha256_of_bytes(lines[-1]) if lines else _FIRST
        self._lock = threading.Lock()

    def _cut_torn_line(self) -> None:
        """Removes a last line that an interruption left half written; nothing of it had left."""
        if self.path.exists() and (content := self.path.read_bytes()) and not content.endswith(b"\n"):
            os.truncate(self.path, content.rfind(b"\n") + 1)

    def record(self, run: str, round_: int | None, uid: int, messages: Iterable[Passed]) -> None:
        """Appends messages, on disk when it returns. An `OSError` leaves the log as it was.

        Several threads may call it.
        """
        with self._lock:
            self._record(run, round_, uid, messages)

    def _record(self, run: str, round_: int | None, uid: int, messages: Iterable[Passed]) -> None:
        written, last, count = bytearray(), self.last, self.count
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        for passed in messages:
            for entry in _entries(passed):
                line = {"time": now, "run": run, "round": round_, "uid": uid, "direction": passed.direction, **entry}
                text = json.dumps({**line, "previous": last}).encode()
                written += text + b"\n"
                last, count = sha256_of_bytes(text), count + 1
        with self.path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                if file.write(written) != len(written):
                    raise OSError("the audit log could not be written whole")
                os.fsync(file.fileno())
                write_whole(self.head, json.dumps({"lines": count, "sha256": last}))
            except OSError:
                file.truncate(before)
                raise
        self.last, self.count = last, count


def _entries(passed: Passed) -> Iterable[dict[str, Any]]:
    """A message's entry, and one for each of its arrays."""
    kind, frame = passed.message["type"], encode(Frame(passed.message, passed.arrays))
    told = {key: passed.message[key] for key in _WRITTEN_OUT if passed.direction == "out" and key in passed.message}
    yield {"type": kind, "bytes": len(frame), "sha256": hashlib.sha256(frame).hexdigest(), "told": told}
    for name, array in passed.arrays.items():
        content = array.tobytes()
        shape = {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}
        yield {"type": kind, **shape, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def read_audit(folder: Path, tell: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """The entries of an audit log; raises `UserError` if one was changed or removed.

    A last line that is half written is reported to `tell` and left out.
    """
    path = folder / "audit.jsonl"
    lines = _checked_lines(path, folder / "audit.head")
    if path.exists() and path.read_bytes().rpartition(b"\n")[2]:
        tell(f"{path}: the last line is half written, as after a crash, and is left out; the agent removes it when it starts")
    return [json.loads(line) for line in lines]


def _checked_lines(path: Path, head: Path) -> list[bytes]:
    if not path.exists() and not head.exists():
        return []
    try:
        lines, last = path.read_bytes().split(b"\n")[:-1], _FIRST  # what follows the last line's end is half written
        for number, line in enumerate(lines, start=1):
            if _entry(path, number, line).previous != last:
                raise UserError(f"{path}: line {number} does not follow from the one before; a line was changed or removed")
            last = sha256_of_bytes(line)
        # The log may be ahead by what was written just before an interruption, but never behind.
        known: dict[str, Any] = json.loads(head.read_text()) if head.exists() else {"lines": 0, "sha256": _FIRST}
        count, expected = int(known["lines"]), known["sha256"]
        found = sha256_of_bytes(lines[count - 1]) if 0 < count <= len(lines) else _FIRST
        if count > len(lines) or found != expected:
            raise UserError(f"{path} does not have the {count} lines that {head.name} counts; lines were changed or removed")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); restore it from a backup") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); restore it from a backup") from error
    return lines


def _entry(path: Path, number: int, line: bytes) -> Entry:
    try:
        return Entry.model_validate(json.loads(line))
    except ValidationError as error:
        raise UserError(
            f"{path}: line {number} is no entry of an audit log ({first_problem(error)}); restore it from a backup"
        ) from error


def table(entries: Iterable[Mapping[str, Any]], direction: Literal["in", "out"] = "out") -> list[list[str]]:
    """Rows of what left (or came in): run, round, message, tensor, shape, bytes, how often, and the last SHA-256's beginning.

    Rounds of a run with the same tensors are one row.
    """
    rows: dict[tuple[str, ...], list[Any]] = {}
    for entry in entries:
        if entry["direction"] != direction:
            continue
        name, shape = entry.get("name", "(message)"), "×".join(map(str, entry.get("shape", [])))
        row = rows.setdefault((entry["run"], entry["type"], name, shape), [set(), 0, 0, ""])
        row[0] |= {entry["round"]} - {None}
        row[1:] = row[1] + entry["bytes"], row[2] + 1, entry["sha256"][:12]
    return [[*key, _ranges(rounds), str(size), str(times), sha] for key, (rounds, size, times, sha) in rows.items()]


COLUMNS = ("run", "message", "tensor", "shape", "rounds", "bytes", "times", "last SHA-256")


def _ranges(rounds: Iterable[int]) -> str:
    """Rounds as text.

    >>> _ranges([3, 0, 1, 2, 7])
    '0-3, 7'
    """
    found: list[list[int]] = []
    for number in sorted(rounds):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found)

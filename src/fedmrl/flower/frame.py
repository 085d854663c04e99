"""The frame of a message between an organisation's agent and its peer: a JSON header, then arrays.

A frame is 4 bytes `fmrl`, then in little-endian order the version (u32), the header's length (u32) and the body's length
(u64), the header, and the body. The header is `{"message": {…}, "arrays": [{"name", "dtype", "shape"}, …]}`; the body has the
arrays' bytes one after another, in that order, without gaps.

Imports no more than NumPy, as Flower starts a new Python process for each message.
"""

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

MAGIC = b"fmrl"
VERSION = 1
MAX_HEADER = 1024**2
MAX_BODY = 64 * 1024**2
DTYPES = {"float32": "<f4", "float64": "<f8", "int64": "<i8", "int32": "<i4", "uint8": "|u1"}
"""The types that travel. There is no bf16, as weights are never kept in it, and no pickle."""

_PREFIX = struct.Struct("<4sIIQ")
_MAX_DEPTH = 8
_MAX_NAME = 300
_CHUNK = 1024**2


class FrameError(Exception):
    """Bytes that are no frame; the message is a sentence that may be sent to the peer."""


@dataclass(frozen=True)
class Frame:
    """A message as plain data, and its arrays by name."""

    message: Mapping[str, Any]
    arrays: Arrays = field(default_factory=dict)


def encode(frame: Frame) -> bytes:
    """The bytes of a frame.

    >>> decode(encode(Frame({"type": "hello"}, {"w": np.ones(2)}))).arrays["w"]
    array([1., 1.])
    """
    listed, parts = [], []
    for name, array in frame.arrays.items():
        if array.dtype.name not in DTYPES:
            raise FrameError(f"array {name!r} is {array.dtype.name}; only {', '.join(DTYPES)} travel")
        listed.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape)})
        parts.append(array.astype(DTYPES[array.dtype.name], copy=False).tobytes())
    try:
        header = json.dumps({"message": dict(frame.message), "arrays": listed}, allow_nan=False).encode()
    except ValueError as error:
        raise FrameError(f"the message cannot be written as JSON ({error})") from error
    body = b"".join(parts)
    return _PREFIX.pack(MAGIC, VERSION, len(header), len(body)) + header + body


def decode(data: bytes | bytearray, max_header: int = MAX_HEADER, max_body: int = MAX_BODY) -> Frame:
    """The frame that these bytes are, if they are one to the last byte."""
    if len(data) < _PREFIX.size:
        raise FrameError(f"the frame ends after {len(data)} bytes, within its first {_PREFIX.size}")
    header, body = _lengths(data[: _PREFIX.size], max_header, max_body)
    if (found := len(data) - _PREFIX.size) != header + body:
        raise FrameError(f"the frame announces {header + body} bytes after its prefix and has {found}")
    split = _PREFIX.size + header
    return _parsed(bytes(data[_PREFIX.size : split]), memoryview(data)[split:])


def _lengths(prefix: bytes | bytearray, max_header: int, max_body: int) -> tuple[int, int]:
    """The lengths of header and body, within their caps."""
    magic, version, header, body = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise FrameError(f"the frame does not begin with {MAGIC.decode()}")
    if version != VERSION:
        raise FrameError(f"the frame has version {version}, and this is version {VERSION}; use the same fedmrl on both sides")
    for what, length, most in (("header", header, max_header), ("body", body, max_body)):
        if length > most:
            raise FrameError(f"the frame's {what} has {length} bytes; at most {most} are taken")
    return header, body


def _parsed(header: bytes, body: memoryview) -> Frame:
    try:
        plain = json.loads(header, parse_constant=_no_constant, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the header is not JSON ({error})") from error
    _check_plain(plain, 0)
    if not isinstance(plain, dict) or plain.keys() != {"message", "arrays"} or not isinstance(plain["message"], dict):
        raise FrameError("the header must have a message and a list of arrays")
    if not isinstance(plain["arrays"], list):
        raise FrameError("the header's arrays must be a list")
    arrays: dict[str, NDArray[Any]] = {}
    start = 0
    for entry in plain["arrays"]:
        name, dtype, shape = _entry(entry)
        if name in arrays:
            raise FrameError(f"array {name!r} is listed twice")
        # Products without zeros: NumPy refuses [0, 2**60, 2**60] as well, with an exception of its own.
        if math.prod(max(size, 1) for size in shape) * dtype.itemsize > max(len(body), _CHUNK):
            raise FrameError(f"array {name!r} of shape {shape} is larger than the body")
        count = math.prod(shape)
        if start + count * dtype.itemsize > len(body):
            raise FrameError(f"array {name!r} of shape {shape} goes beyond the end of the body")
        arrays[name] = np.frombuffer(body, dtype, count, start).reshape(shape).astype(dtype.newbyteorder("="))
        start += count * dtype.itemsize
    if start != len(body):
        raise FrameError(f"the body has {len(body)} bytes, and its arrays take {start}")
    return Frame(plain["message"], arrays)


def _entry(entry: Any) -> tuple[str, np.dtype[Any], list[int]]:
    """An array's name, type and shape, as the header lists it."""
    if not isinstance(entry, dict) or entry.keys() != {"name", "dtype", "shape"}:
        raise FrameError("each array of the header must have a name, a dtype and a shape")
    name, dtype, shape = entry["name"], entry["dtype"], entry["shape"]
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise FrameError(f"an array's name must be text of 1 to {_MAX_NAME} printable characters")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FrameError(f"array {name!r} has an unknown dtype; choose {', '.join(DTYPES)}")
    sizes = isinstance(shape, list) and len(shape) <= 16 and all(type(size) is int and 0 <= size < 2**48 for size in shape)
    if not sizes:
        raise FrameError(f"array {name!r} must have a list of at most 16 whole numbers as its shape")
    return name, np.dtype(DTYPES[dtype]), shape


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _check_plain(value: Any, depth: int) -> None:
    """Raises `FrameError` for what JSON allows and messages do not have: deep nesting, infinite numbers, broken text."""
    if depth > _MAX_DEPTH:
        raise FrameError(f"the header is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise FrameError("the header has a number that is not finite")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise FrameError("the header has text that is not Unicode") from None
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    for item in inner:
        _check_plain(item, depth + 1)


def receive(connection: socket.socket, seconds: float, max_header: int = MAX_HEADER, max_body: int = MAX_BODY) -> bytearray:
    """Reads one whole frame within `seconds`, after which the peer must end its side of the connection.

    Memory grows with the bytes that come, not with those that are announced.
    """
    end = time.monotonic() + seconds
    data = _exactly(connection, bytearray(), _PREFIX.size, end, seconds)
    header, body = _lengths(data, max_header, max_body)
    data = _exactly(connection, data, _PREFIX.size + header + body, end, seconds)
    if _some(connection, 1, end, seconds):
        raise FrameError("there are bytes after the frame; a connection is for one frame")
    return data


def _exactly(connection: socket.socket, data: bytearray, length: int, end: float, seconds: float) -> bytearray:
    while len(data) < length:
        more = _some(connection, min(_CHUNK, length - len(data)), end, seconds)
        if not more:
            raise FrameError(f"the connection ended after {len(data)} bytes of a frame of at least {length}")
        data += more
    return data


def _some(connection: socket.socket, most: int, end: float, seconds: float) -> bytes:
    left = end - time.monotonic()
    if left > 0:
        connection.settimeout(left)
        try:
            return connection.recv(most)
        except TimeoutError:
            pass
        except ConnectionResetError:  # the peer closed it without having read all that was sent
            return b""
        except OSError as error:
            raise FrameError(f"the connection broke ({error.strerror})") from error
    raise FrameError(f"the frame did not arrive within {seconds:g} seconds")


def send(connection: socket.socket, data: bytes | bytearray, seconds: float) -> None:
    """Sends a frame's bytes within `seconds`, and ends this side of the connection."""
    connection.settimeout(seconds)  # of all of it: see socket.sendall
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def _connect(connection: socket.socket, path: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    connection.settimeout(seconds)
    while True:
        try:
            connection.connect(path)
        except BlockingIOError:  # many connect at this moment
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return


def exchange(path: str | Path, request: bytes, seconds: float, max_header: int = MAX_HEADER, max_body: int = MAX_BODY) -> bytes:
    """Sends a request's frame to the agent at a socket, and returns its reply's frame, waiting at most `seconds` for each.

    Raises `OSError` if there is no agent, and `FrameError` if its reply is not complete.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connect(connection, str(path), seconds)
        with suppress(BrokenPipeError, ConnectionResetError):  # the agent refuses a request before its end, and says why
            send(connection, request, seconds)
        return bytes(receive(connection, seconds, max_header, max_body))

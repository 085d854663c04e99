"""Frames: what is sent arrives, and bytes that are no frame raise `FrameError` and nothing else."""

import json
import socket
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedmrl.flower.frame import DTYPES, Frame, FrameError, decode, encode, exchange, receive, send

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.isprintable)
ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda dtype: arrays(np.dtype(dtype), array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
FRAMES = st.builds(Frame, st.dictionaries(st.text(), PLAIN, max_size=3), st.dictionaries(NAMES, ARRAYS, max_size=3))
GOOD = encode(Frame({"type": "train", "round": 3}, {"small.w": np.arange(6.0).reshape(2, 3), "n": np.array([1, 2])}))


def by_hand(header, body=b"", magic=b"fmrl", version=1, lengths=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    sizes = lengths or (len(header), len(body))
    return struct.pack("<4sIIQ", magic, version, *sizes) + header + body


def one(name="w", dtype="float32", shape=(2,)):
    return {"name": name, "dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape}


def header(*listed, **message):
    return {"message": message, "arrays": list(listed)}


@given(FRAMES)
def test_what_is_encoded_is_decoded_to_the_same_bits(frame):
    found = decode(encode(frame))
    assert found.message == frame.message and list(found.arrays) == list(frame.arrays)
    for name, array in frame.arrays.items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (array.dtype, array.shape)
        assert found.arrays[name].tobytes() == array.tobytes()


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_frame_error(data):
    with pytest.raises(FrameError):
        decode(data)
    with pytest.raises(FrameError):
        decode(by_hand(data))


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.booleans())
def test_a_changed_byte_raises_nothing_but_a_frame_error(place, value, cut):
    data = bytearray(GOOD)
    data[place] = value
    try:
        decode(data[:place] if cut else data)
    except FrameError as error:
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (GOOD[:10], "ends after 10 bytes"),
        (GOOD[:-1], "announces"),
        (GOOD + b"x", "announces"),
        (by_hand(header(), magic=b"fmrm"), "does not begin with fmrl"),
        (by_hand(header(), version=2), "version 2"),
        (by_hand(b"", lengths=(2**20 + 1, 0)), "header has 1048577 bytes"),
        (by_hand(header(), lengths=(2, 2**60)), "body has 1152921504606846976 bytes"),
        (by_hand(b"{"), "not JSON"),
        (by_hand(b"\xff\xfe"), "not JSON"),
        (by_hand([]), "must have a message"),
        (by_hand({**header(), "more": 1}), "must have a message"),
        (by_hand(b'{"message": {"a": 1, "a": 2}, "arrays": []}'), "a key occurs twice"),
        (by_hand(b'{"message": {"a": NaN}, "arrays": []}'), "NaN is no number"),
        (by_hand(b'{"message": {"a": 1e999}, "arrays": []}'), "not finite"),
        (by_hand(b'{"message": {"a": "\\ud800"}, "arrays": []}'), "not Unicode"),
        (by_hand(b'{"message": {"a": ' + b"9" * 5000 + b'}, "arrays": []}'), "not JSON"),
        (by_hand(b'{"message": {"a": ' + b"[" * 9 + b"]" * 9 + b'}, "arrays": []}'), "nested"),
        (by_hand(b"[" * 100_000), "not JSON"),
        (by_hand(header(one(), one()), bytes(16)), "listed twice"),
        (by_hand(header(one(shape=(3,))), bytes(8)), "beyond the end"),
        (by_hand(header(one(shape=(1,))), bytes(8)), "its arrays take 4"),
        (by_hand(header(one(shape=(2**40, 2**40, 0))), b""), "larger than the body"),
        (by_hand(header(one(shape=(2**70,))), b""), "whole numbers as its shape"),
        (by_hand(header(one(shape=(-1,))), b""), "whole numbers as its shape"),
        (by_hand(header(one(shape=[True])), bytes(4)), "whole numbers as its shape"),
        (by_hand(header(one(dtype="object")), bytes(16)), "unknown dtype"),
        (by_hand(header(one(dtype="bfloat16")), bytes(4)), "unknown dtype"),
        (by_hand(header(one(dtype=["float32"])), bytes(8)), "unknown dtype"),
        (by_hand(header(one(name="")), bytes(8)), "name must be"),
        (by_hand(header(one(name="a\nb")), bytes(8)), "name must be"),
        (by_hand(header({"name": "w"})), "must have a name, a dtype and a shape"),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused_in_one_sentence(data, says):
    with pytest.raises(FrameError, match=says) as refused:
        decode(data)
    assert len(str(refused.value)) < 300


def test_bf16_is_not_encoded():
    with pytest.raises(FrameError, match="float16; only"):
        encode(Frame({}, {"w": np.zeros(2, np.float16)}))
    with pytest.raises(FrameError, match="JSON"):
        encode(Frame({"loss": float("nan")}))


def test_a_frame_arrives_over_a_socket_in_pieces():
    here, there = socket.socketpair()
    with here, there:

        def pieces():
            for start in range(0, len(GOOD), 7):
                here.sendall(GOOD[start : start + 7])
            here.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=pieces)
        thread.start()
        assert receive(there, 5) == GOOD
        thread.join()


@pytest.mark.parametrize("sent", [b"", GOOD[:3], GOOD[:30], GOOD])
def test_a_frame_that_does_not_come_in_time_is_given_up(sent):
    here, there = socket.socketpair()
    with here, there:
        here.sendall(sent)  # and the connection is not ended
        begun = time.monotonic()
        with pytest.raises(FrameError, match=r"within 0\.2 seconds"):
            receive(there, 0.2)
        assert time.monotonic() - begun < 2


def test_a_frame_that_comes_a_byte_at_a_time_has_one_deadline_for_all_of_it():
    here, there = socket.socketpair()

    def drip():
        for i in range(100):
            try:
                here.sendall(GOOD[i : i + 1])
            except OSError:
                return
            time.sleep(0.05)

    thread = threading.Thread(target=drip)
    with here, there:
        thread.start()
        with pytest.raises(FrameError, match=r"within 0\.3 seconds"):
            receive(there, 0.3)
        there.close()
        thread.join()


@pytest.mark.parametrize(("sent", "says"), [(GOOD[:30], "ended after 30 bytes"), (GOOD + b"x", "after the frame")])
def test_over_a_socket_too_little_and_too_much_are_refused(sent, says):
    here, there = socket.socketpair()
    with here, there:
        send(here, sent, 5)
        with pytest.raises(FrameError, match=says):
            receive(there, 5)


def test_an_exchange_is_one_frame_each_way(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def answer():
            connection, _ = server.accept()
            with connection:
                send(connection, bytes(receive(connection, 5)), 5)

        thread = threading.Thread(target=answer)
        thread.start()
        assert exchange(tmp_path / "s", GOOD, 5) == GOOD
        thread.join()


def test_the_module_loads_neither_torch_nor_pydantic():
    code = "import sys, fedmrl.flower.frame; print({'torch', 'pydantic', 'flwr'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"

"""The ClientApp, between a Flower message and a Unix socket."""

import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedmrl.flower.frame import Frame, decode, encode
from fedmrl.flower.shim import FRAME, forward, frame_of, record


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """What Flower sets in the process of a ClientApp."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@contextmanager
def agent(path, answer):
    """A stand-in for the agent that answers one frame by a function."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve():
            accepted, _ = listening.accept()
            with accepted:
                frame = b""
                while chunk := accepted.recv(1 << 16):
                    frame += chunk
                with suppress(OSError):  # the peer has given up
                    accepted.sendall(answer(frame))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(5)


def asked(path, content, ttl=20.0):
    message = Message(content, dst_node_id=7, message_type="train", ttl=ttl)
    message.metadata.__dict__["_message_id"] = "m1"
    return forward(message, Context(1, 7, {"socket": str(path)}, RecordDict(), {}))


def test_a_frame_and_its_reply_pass_unchanged(tmp_path):
    frame = encode(Frame({"type": "hello"}, {"w": np.arange(300_000.0)}))
    with agent(tmp_path / "s", lambda got: encode(Frame(decode(got).message, {"v": decode(got).arrays["w"] * 2}))):
        reply = asked(tmp_path / "s", record(frame))
    assert decode(frame_of(reply.content)).message == {"type": "hello"}
    assert decode(frame_of(reply.content)).arrays["v"].tolist() == (np.arange(300_000.0) * 2).tolist()
    assert reply.metadata.reply_to_message_id == "m1"


def test_a_reply_may_be_larger_than_a_default_message(tmp_path):
    large = np.zeros(65 * 1024**2, np.uint8)
    with agent(tmp_path / "s", lambda _: encode(Frame({}, {"v": large}))):
        reply = asked(tmp_path / "s", record(b"x"), ttl=60.0)
    assert not reply.has_error() and len(frame_of(reply.content)) > large.nbytes


def test_without_an_agent_the_reply_is_an_error_without_paths(tmp_path):
    reply = asked(tmp_path / "gone", record(b"x"))
    assert reply.error.reason == "the client's agent does not answer on its socket (No such file or directory)"


def test_an_agent_that_is_too_slow_is_given_up_at_the_deadline(tmp_path):
    begun = time.monotonic()
    with agent(tmp_path / "s", lambda _: time.sleep(3) or b"late"):
        reply = asked(tmp_path / "s", record(b"x"), ttl=1.0)
        assert time.monotonic() - begun < 2.5
    assert reply.error.reason == "the client's agent gave no whole reply: the frame did not arrive within 1 seconds"


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({FRAME: ConfigRecord({"a": 1})}),
        RecordDict({FRAME: ArrayRecord()}),
        RecordDict({"x": ArrayRecord()}),
    ],
)
def test_a_message_of_anything_but_one_frame_never_reaches_the_agent(tmp_path, content):
    assert asked(tmp_path / "gone", content).error.reason == "the message does not consist of one frame"


def test_the_shim_loads_nothing_of_fedmrl_but_itself():
    code = "import sys, json, fedmrl.flower.shim; print(json.dumps([m for m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(json.loads(done.stdout))
    ours = {name for name in loaded if name.partition(".")[0] == "fedmrl"}
    assert ours == {"fedmrl", "fedmrl.errors", "fedmrl.version", "fedmrl.flower", "fedmrl.flower.frame", "fedmrl.flower.shim"}
    assert "torch" not in loaded

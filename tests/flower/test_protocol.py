"""Messages: typed, strict, and equal if they ask for the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmrl.flower.frame import Frame, FrameError, encode
from fedmrl.flower.protocol import (
    Evaluate,
    EvaluateOk,
    Failure,
    Hello,
    HelloOk,
    Train,
    TrainOk,
    content_digest,
    new_id,
    read_reply,
    read_request,
    to_arrays,
    to_bytes,
    to_tensors,
)

CONTENT = {"small.w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
TRAIN = Train(run="r", round=2, rounds=5, since=1, earlier=2)


@pytest.mark.parametrize(
    "request_",
    [Hello(run="r", client=0, recipe="rounds = 3"), TRAIN, Evaluate(run="r", since=None, content=True, modes=["mix-large"])],
)
def test_a_request_is_read_back_as_it_was_written(request_):
    found, arrays = read_request(to_bytes(request_, CONTENT))
    assert found == request_
    assert all(torch.equal(to_tensors(arrays)[name], CONTENT[name]) for name in CONTENT)


@pytest.mark.parametrize(
    "reply",
    [
        HelloOk(name="a", model="CNN-1", train=3, test=1, classes={"0": 2}),
        TrainOk(round=1, loss=None, finite=False, flops=3, correct={}),
        EvaluateOk(correct={"own": {"local": 3}}),
        Failure(reason="busy", sentence="try again"),
    ],
)
def test_a_reply_is_read_back_as_it_was_written(reply):
    assert read_reply(to_bytes(reply))[0] == reply


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "run"}, {"type": None}, {"round": -1}, {"round": "2"}, {"round": 2.0}, {"round": True}, {"round": 2**60},
        {"run": "../../etc"}, {"run": ""}, {"run": "a\n"}, {"run": "a" * 65}, {"more": 1}, {"id": "x"}, {"since": "1"},
    ],
)  # fmt: skip
def test_a_message_that_is_not_known_to_the_letter_is_refused(changes):
    with pytest.raises(FrameError, match="not one that is known"):
        read_request(encode(Frame({**TRAIN.model_dump(), **changes})))


@given(st.dictionaries(st.text(), st.none() | st.integers(-5, 5) | st.text() | st.lists(st.integers(0, 3))))
def test_random_messages_raise_nothing_but_a_frame_error(message):
    with pytest.raises(FrameError):
        read_request(encode(Frame({**message, "type": "train"})))


def test_an_error_is_one_line_of_printable_text():
    failure = Failure(reason="refused", sentence="a\nfaked line \x1b[2J" + "x" * 600)
    assert failure.sentence.startswith("a?faked line ?[2J") and len(failure.sentence) == 501


def test_requests_are_equal_if_all_but_their_ids_is():
    arrays = to_arrays(CONTENT)
    other = TRAIN.model_copy(update={"id": new_id()})
    assert content_digest(TRAIN, arrays) == content_digest(other, dict(reversed(arrays.items())))
    assert content_digest(TRAIN, arrays) != content_digest(TRAIN, {"n": arrays["n"]})
    assert content_digest(TRAIN, arrays) != content_digest(TRAIN.model_copy(update={"round": 3}), arrays)
    changed = to_arrays({**CONTENT, "n": torch.tensor(4)})
    assert content_digest(TRAIN, arrays) != content_digest(TRAIN, changed)

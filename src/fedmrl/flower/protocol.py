"""The messages between an organisation's agent and its peer: numbers, names, and in `hello` the recipe's text.

A request goes to the agent; it replies with the message of the same name and `-ok`, or with `error`. Rounds are counted
from 0. `since` names the client's state after a round; null is the initial state. Each message's docstring lists its arrays.
"""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedmrl.files import sha256_of_bytes
from fedmrl.flower.frame import Arrays, Frame, FrameError, decode, encode
from fedmrl.messages import Tensors
from fedmrl.schema import first_problem

Whole = Annotated[int, Field(ge=0, lt=2**53)]
MessageId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
RunId = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
"""The server's name of a run, which is also the name of a folder."""
Reason = Literal["bad-message", "hello-first", "refused", "busy", "failed"]
"""Of an error: the message cannot be read; this run needs a hello first; it is out of bounds or out of turn; too many
connections, so try again; the agent cannot do it, and its log says why."""


def new_id() -> str:
    """A random message id."""
    return secrets.token_hex(16)


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Message(_Plain):
    """A message as plain data."""

    id: MessageId = Field(default_factory=new_id)
    """Of a request, random; its reply has the same."""


class Hello(Message):
    """Begins a run, or goes on with one."""

    type: Literal["hello"] = "hello"
    run: RunId
    client: Whole
    """The client's number in the run."""
    recipe: Annotated[str, Field(max_length=100_000)]
    """The resolved recipe's TOML, as `Recipe.to_toml` writes it."""


class Train(Message):
    """Asks for a round of training. Its arrays are the server's content, which may be empty."""

    type: Literal["train"] = "train"
    run: RunId
    round: Whole
    rounds: Whole
    """The number of rounds of the run."""
    since: Whole | None
    earlier: Whole
    """Rounds in which the client has taken part before."""


class Evaluate(Message):
    """Asks for counts of correct predictions. Its arrays are the server's content, if `content` is true."""

    type: Literal["evaluate"] = "evaluate"
    run: RunId
    since: Whole | None
    content: bool
    modes: Annotated[list[str], Field(min_length=1, max_length=16)]


class HelloOk(Message):
    """Who the client is."""

    type: Literal["hello-ok"] = "hello-ok"
    name: str
    model: str
    """The model's label."""
    train: Whole
    test: Whole
    classes: dict[str, Whole] | None = None
    """Training samples by class label, if the organisation lets them leave."""


class TrainOk(Message):
    """The result of a round's training. Its arrays are the upload."""

    type: Literal["train-ok"] = "train-ok"
    round: Whole
    loss: float | None
    """The mean loss; null if it is not finite."""
    finite: bool
    """Whether the weights are finite. Unless both are, the round counts as trained, without a new state and upload."""
    flops: Whole
    correct: dict[str, Whole]
    """Correct predictions of the new state on the client's test samples, by mode."""


class EvaluateOk(Message):
    """Counts of correct predictions by view and mode."""

    type: Literal["evaluate-ok"] = "evaluate-ok"
    correct: dict[Literal["own", "aggregated"], dict[str, Whole]]


def one_line(sentence: str) -> str:
    """The sentence without what would disturb a log or a terminal, as it may quote the other side."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in sentence)
    return shown if len(shown) <= 500 else f"{shown[:500]}…"


class Failure(Message):
    """A request that was not carried out."""

    type: Literal["error"] = "error"
    reason: Reason
    sentence: Annotated[str, AfterValidator(one_line)]


Request = Hello | Train | Evaluate
Reply = HelloOk | TrainOk | EvaluateOk | Failure

_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="type")])
_REPLY: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="type")])


def to_bytes(message: Request | Reply, content: Mapping[str, torch.Tensor] | None = None) -> bytes:
    """A message's frame, with these tensors as its arrays."""
    return encode(Frame(message.model_dump(), to_arrays(content or {})))


def read_request(data: bytes | bytearray, **caps: int) -> tuple[Request, Arrays]:
    """A request and its arrays; raises `FrameError`."""
    frame = decode(data, **caps)
    return _typed(_REQUEST, frame.message), frame.arrays


def read_reply(data: bytes | bytearray, **caps: int) -> tuple[Reply, Arrays]:
    """A reply and its arrays; raises `FrameError`."""
    frame = decode(data, **caps)
    return _typed(_REPLY, frame.message), frame.arrays


def _typed(schema: TypeAdapter[Any], message: Mapping[str, Any]) -> Any:
    try:
        return schema.validate_python(dict(message))
    except ValidationError as error:
        raise FrameError(f"the message is not one that is known: {first_problem(error)[:200]}") from error


def content_digest(request: Request, arrays: Arrays) -> str:
    """The SHA-256 of a request without its id: equal requests ask for the same."""
    message = request.model_dump(exclude={"id"})
    return sha256_of_bytes(encode(Frame(dict(sorted(message.items())), dict(sorted(arrays.items())))))


def to_arrays(content: Mapping[str, torch.Tensor]) -> Arrays:
    """Tensors as NumPy arrays."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in content.items()}


def to_tensors(arrays: Arrays) -> Tensors:
    """NumPy arrays as tensors, which share their memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}

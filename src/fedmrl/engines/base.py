"""The interface of an engine, which trains and evaluates a round's clients and keeps no state of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedmrl.aggregation import MEAN, Aggregation
from fedmrl.cpu import emulates_bf16
from fedmrl.data import ClientSplit, Dataset
from fedmrl.errors import CODE_FAILS, UserCodeError, UserError, cause
from fedmrl.guard import called, is_ours
from fedmrl.messages import MessageForm, Tensors
from fedmrl.methods import ClientNet, Common, Method, Round, Task
from fedmrl.models import ModelSpec, is_own
from fedmrl.privacy import Privacy
from fedmrl.randomness import generator, host_seeded
from fedmrl.training import Training

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}


@contextmanager
def numerics(precision: str, device: torch.device) -> Iterator[None]:
    """A context in which products have this precision; weights, losses and sums keep 32 bits or more.

    fp32 turns TF32 off, which torch would otherwise use for convolutions on a GPU.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        # Without autocast's cache, which would return stale casts of weights that have changed.
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@contextmanager
def failures_told(models: Sequence[ModelSpec], where: str, does: str, method: Method | None = None) -> Iterator[None]:
    """A context in which exceptions become a `UserCodeError` that names the user's own models or method, if any."""
    try:
        yield
    except CODE_FAILS as error:
        own = list(dict.fromkeys(model.label for model in models if is_own(model)))
        fix = "model"
        if method is not None and not is_ours(type(method)):
            own, fix = [called(method, "method"), *own], "method or the model" if own else "method"
        if isinstance(error, UserError | MemoryError | torch.OutOfMemoryError) or not own:
            raise
        raise UserCodeError(f"{where}: {', '.join(own)} fails as it {does}: {cause(error)}; fix the {fix}") from error


@dataclass(frozen=True)
class Terms:
    """What the server and all clients agree on before the first round."""

    method: Method
    training: Training
    common: Common
    seed: int
    rounds: int
    aggregation: Aggregation = MEAN
    privacy: Privacy | None = None
    """How clients' updates are protected, by the server or by the clients; no matter of an engine."""

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of weights and data."""
        return DTYPES[self.training.precision]

    def leaving(self, upload: Tensors, received: Tensors | None, round_: Round, client: int) -> Tensors:
        """What leaves a client of its upload: with local privacy, its clipped update with noise."""
        if self.privacy is None or self.privacy.mode != "local" or not upload:
            return upload
        return self.privacy.own_upload(upload, received or {}, self.privacy.draw(self.seed, round_.index, client))

    def fresh_net(self, client: int, model: ModelSpec, held: Sequence[int]) -> ClientNet:
        """A client's net on the host with its initial weights, drawn from the seed and the client's number.

        `held` are the classes in its training data.
        """
        held_C = torch.zeros(self.common.classes, dtype=torch.bool)
        held_C[list(held)] = True
        with host_seeded(self.seed, "weights", client):
            local = model.build(self.common.shape, self.common.classes)
            net = self.method.build(local, Task(**vars(self.common), held_C=held_C))
        return net.to(dtype=self.dtype)

    def server_start(self, device: torch.device) -> Tensors:
        """The server's state before the first round, drawn from the seed alone, independent of the clients."""
        with host_seeded(self.seed, "shared weights"):
            state = self.method.start(self.common)
        dtypes = {name: self.dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in state.items()}
        return {name: tensor.to(device, dtypes[name]) for name, tensor in state.items()}

    @property
    def upload_form(self) -> MessageForm:
        """What a client may send."""
        return self.method.upload_form(self.common, self.server_start(torch.device("cpu")), self.dtype)

    @property
    def answer_form(self) -> MessageForm:
        """What the server may send."""
        return self.method.answer_form(self.common, self.server_start(torch.device("cpu")), self.dtype)


@dataclass(frozen=True)
class Member(ClientSplit):
    """One client's samples and model."""

    model: ModelSpec


@dataclass(frozen=True)
class Setting:
    """A run's clients on this machine, by number, with the data."""

    terms: Terms
    data: Dataset
    members: Mapping[int, Member]
    device: torch.device

    @property
    def method(self) -> Method:
        """The method."""
        return self.terms.method

    @property
    def training(self) -> Training:
        """How each client trains."""
        return self.terms.training

    @property
    def seed(self) -> int:
        """The seed of all random numbers."""
        return self.terms.seed

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of weights and data."""
        return self.terms.dtype

    @property
    def models(self) -> dict[ModelSpec, int]:
        """Each kind of local model, with the first client that has it."""
        found: dict[ModelSpec, int] = {}
        for client, member in self.members.items():
            found.setdefault(member.model, client)
        return found

    def server_start(self) -> Tensors:
        """The server's state before the first round, on this machine's device."""
        return self.terms.server_start(self.device)

    def fresh_net(self, client: int) -> ClientNet:
        """A client's net with its initial weights, drawn from the seed and the client's number.

        They are drawn on the host, so they are the same on every device, and for a client that joins late.
        """
        return self.terms.fresh_net(client, self.members[client].model, self.held(client)).to(self.device)

    def held(self, client: int) -> list[int]:
        """The classes in the client's training data."""
        labels: list[int] = np.unique(self.data.y[self.members[client].train]).tolist()
        return labels

    def subsets(self, client: int) -> dict[str, np.ndarray]:
        """The client's training data as the method divides it, as positions in the dataset."""
        own = self.members[client].train
        cut = self.method.subsets(len(own), generator(self.seed, "subsets", client))
        return {name: own[positions] for name, positions in cut.items()}


@dataclass(frozen=True)
class Turn:
    """A client's turn: its number, its state, what the server sends (None: nothing), and its earlier rounds.

    `run` is the index of the client's run, when several run together.
    """

    client: int
    state: Tensors
    received: Tensors | None
    earlier: int = 0
    run: int = 0


Broken = Literal["loss", "weights"]


@dataclass(frozen=True)
class Trained:
    """The result of a client's training: its new state and its upload."""

    client: int
    state: Tensors
    upload: Tensors
    told: Tensor
    """The mean loss over the samples seen, and 1 if the weights are finite, else 0. Reading them waits for the device."""

    @property
    def loss(self) -> float:
        """The mean loss over the samples seen."""
        return float(self.told[0])

    @property
    def broken(self) -> Broken | None:
        """What became NaN or infinite, if anything; such a training is discarded."""
        return broken(*self.told.tolist())


def broken(loss: float, finite: float) -> Broken | None:
    """What became NaN or infinite, from the two values of `Trained.told`.

    >>> broken(0.5, 1.0), broken(math.nan, 1.0), broken(0.5, 0.0)
    (None, 'loss', 'weights')
    """
    if not math.isfinite(loss):
        return "loss"
    return None if finite else "weights"


def numbers(told: Sequence[Tensor]) -> list[list[float]]:
    """The values of several clients' `Trained.told`, with a single wait for the device."""
    found: list[list[float]] = torch.stack([pair.to(told[0].device) for pair in told]).tolist() if told else []
    return found


CorrectCounts = Mapping[str, Mapping[str, int]]
"""A client's correct predictions on its test samples, by view (`own`, `aggregated`) and mode."""


class Engine(ABC):
    """Trains and evaluates clients, without changing the states it is given."""

    name: ClassVar[str]
    runs_ahead: bool = False
    """Whether `train` returns before the device has finished; reading `Trained.told` then waits for it."""

    def __init__(self, *settings: Setting) -> None:
        """`settings` are those of one run, or of several that differ only in the seed and run together."""
        self.settings = settings
        self.setting = settings[0]
        self.tell: Callable[[str], None] = lambda line: None
        """Called with each notice that comes up during training."""

    @property
    def notices(self) -> list[str]:
        """Notices on how this engine runs these clients, a line each."""
        slow = self.setting.device.type == "cpu" and self.setting.training.precision == "bf16" and emulates_bf16()
        return ["this CPU has no bf16 instructions: bf16 is emulated here, and fp32 may be faster"] if slow else []

    def foresee(self, rounds: Sequence[Sequence[Sequence[int]]]) -> None:  # noqa: B027, an optional hook
        """Announces the clients of every round, for each run."""

    def train(self, round_: Round, turns: Sequence[Turn], then: Sequence[Turn] = ()) -> list[Trained]:
        """Lets each client take in what it received, train by its method and upload.

        `then` are the next round's turns, as far as known, which an engine may prepare while the device works.
        """
        return self.encoded(self.trained(round_, turns, then), round_)

    @abstractmethod
    def trained(self, round_: Round, turns: Sequence[Turn], then: Sequence[Turn] = ()) -> list[Trained]:
        """Trains each client like `train`, but does not encode the uploads."""

    def evaluate(self, turns: Sequence[Turn], modes: Sequence[str]) -> list[CorrectCounts]:
        """Counts each client's correct predictions: as it is, and after taking in what it received, if anything."""
        if absent := set(modes) - set(self.setting.method.modes):
            method = self.setting.method
            raise UserError(f"{method.name} with these settings has no mode {min(absent)!r}; it has {', '.join(method.modes)}")
        return self._evaluate(turns, modes)

    @abstractmethod
    def _evaluate(self, turns: Sequence[Turn], modes: Sequence[str]) -> list[CorrectCounts]:
        """Evaluates clients like `evaluate`, for modes that the method has."""

    def encoded(self, outcomes: Sequence[Trained], round_: Round) -> list[Trained]:
        """The outcomes with encoded, contiguous uploads."""
        method = self.setting.method
        if type(method).encode is not Method.encode:  # encoders cannot handle NaN
            sound = [broken(*told) is None for told in numbers([outcome.told for outcome in outcomes])]
            uploads = [outcome.upload for outcome, is_sound in zip(outcomes, sound, strict=True) if is_sound]
            contents = iter(method.encode(uploads, round_))
            pairs = zip(outcomes, sound, strict=True)
            outcomes = [replace(outcome, upload=next(contents) if is_sound else {}) for outcome, is_sound in pairs]
        return [replace(o, upload={name: tensor.contiguous() for name, tensor in o.upload.items()}) for o in outcomes]

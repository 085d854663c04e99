"""The contract of an engine: it trains a round's clients and evaluates them, and keeps nothing of them itself."""

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
from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.messages import Tensors
from fedmrl.methods import ClientNet, Common, Method, Round, Task
from fedmrl.models import ModelSpec, is_own
from fedmrl.randomness import generator, host_seeded
from fedmrl.training import Training

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}


@contextmanager
def numerics(precision: str, device: torch.device) -> Iterator[None]:
    """Inside, products are computed in this precision; weights, losses and sums are kept in 32 bits or more.

    fp32 means it: torch itself would let convolutions use TF32 on a GPU.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        # Without its cache, which keeps weights that were cast although they have changed since.
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@contextmanager
def failures_told(models: Sequence[ModelSpec], where: str, does: str) -> Iterator[None]:
    """Inside, what a user's own module raises becomes a sentence that names it."""
    try:
        yield
    except CODE_FAILS as error:
        own = dict.fromkeys(model.label for model in models if is_own(model))
        if isinstance(error, UserError | MemoryError | torch.OutOfMemoryError) or not own:
            raise
        raise UserError(f"{where}: {', '.join(own)} fails as it {does}: {cause(error)}; mend the model") from error


@dataclass(frozen=True)
class Terms:
    """What the server and all clients have agreed on before the first round."""

    method: Method
    training: Training
    common: Common
    seed: int
    rounds: int
    aggregation: Aggregation = MEAN

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of all that is computed."""
        return DTYPES[self.training.precision]

    def server_start(self, device: torch.device) -> Tensors:
        """The server's state before the first round. What it draws is keyed by the seed alone, so it depends on no client."""
        with host_seeded(self.seed, "shared weights"):
            state = self.method.start(self.common)
        dtypes = {name: self.dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in state.items()}
        return {name: tensor.to(device, dtypes[name]) for name, tensor in state.items()}


@dataclass(frozen=True)
class Member(ClientSplit):
    """What one client has: its samples, and its model."""

    model: ModelSpec


@dataclass(frozen=True)
class Setting:
    """The clients of a run that are on this machine, by number, with their data."""

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
        """What everything random follows from."""
        return self.terms.seed

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of all that is computed."""
        return self.terms.dtype

    @property
    def models(self) -> dict[ModelSpec, int]:
        """The kinds of model that there are, each with the first client that has it."""
        found: dict[ModelSpec, int] = {}
        for client, member in self.members.items():
            found.setdefault(member.model, client)
        return found

    def server_start(self) -> Tensors:
        """The server's state before the first round, on this machine's device."""
        return self.terms.server_start(self.device)

    def fresh_net(self, client: int) -> ClientNet:
        """A client's net with its first weights, drawn for it alone.

        They are drawn on the host, whatever the device is, so that they are the same everywhere.
        So a client that joins late starts as it would have started in the first round.
        """
        common, member = self.terms.common, self.members[client]
        held_C = torch.from_numpy(np.bincount(self.data.y[member.train], minlength=common.classes) > 0)
        with host_seeded(self.seed, "weights", client):
            net = self.method.build(member.model.build(common.shape, common.classes), Task(**vars(common), held_C=held_C))
        return net.to(device=self.device, dtype=self.dtype)

    def subsets(self, client: int) -> dict[str, np.ndarray]:
        """The client's training data as the method cuts it, as positions in the dataset."""
        own = self.members[client].train
        cut = self.method.subsets(len(own), generator(self.seed, "subsets", client))
        return {name: own[positions] for name, positions in cut.items()}


@dataclass(frozen=True)
class Turn:
    """A client's turn: who, its state, what the server sends it (None: nothing was sent), and how often it took part.

    Where several runs are made as one, `run` says which of them the client belongs to.
    """

    client: int
    state: Tensors
    received: Tensors | None
    earlier: int = 0
    run: int = 0


Broken = Literal["loss", "weights"]


@dataclass(frozen=True)
class Trained:
    """What a client's training gives: its new state, and what it sends."""

    client: int
    state: Tensors
    upload: Tensors
    told: Tensor
    """Its mean loss over the samples it saw, and 1 if its weights are finite, else 0. Reading them waits for the device."""

    @property
    def loss(self) -> float:
        """The mean loss over the samples it saw."""
        return float(self.told[0])

    @property
    def broken(self) -> Broken | None:
        """What became NaN or infinite, if anything did: then nothing of this training counts."""
        return broken(*self.told.tolist())


def broken(loss: float, finite: float) -> Broken | None:
    """What became NaN or infinite in a training, by what `Trained.told` says.

    >>> broken(0.5, 1.0), broken(math.nan, 1.0), broken(0.5, 0.0)
    (None, 'loss', 'weights')
    """
    if not math.isfinite(loss):
        return "loss"
    return None if finite else "weights"


def numbers(told: Sequence[Tensor]) -> list[list[float]]:
    """What several clients' `Trained.told` say, with one wait for the device."""
    found: list[list[float]] = torch.stack([one.to(told[0].device) for one in told]).tolist() if told else []
    return found


CorrectCounts = Mapping[str, Mapping[str, int]]
"""How many test samples a client gets right, by view (`own`, `aggregated`) and mode."""


class Engine(ABC):
    """Trains and evaluates clients. States go in and come out; what goes in is never changed."""

    name: ClassVar[str]
    runs_ahead: bool = False
    """Whether it returns before the work is done, and waits for it when `Trained.told` is read."""

    def __init__(self, *settings: Setting) -> None:
        """Of one run, or of several that are made as one: they differ in the seed, and in what follows from it."""
        self.settings = settings
        self.setting = settings[0]
        self.tell: Callable[[str], None] = lambda line: None
        """Hears what comes up while it works, a line at a time."""

    @property
    def notices(self) -> list[str]:
        """What is worth knowing about how this engine runs these clients, a line each."""
        slow = self.setting.device.type == "cpu" and self.setting.training.precision == "bf16" and emulates_bf16()
        return ["this CPU has no bf16 instructions: bf16 is emulated here, and fp32 may be faster"] if slow else []

    def foresee(self, rounds: Sequence[Sequence[Sequence[int]]]) -> None:  # noqa: B027, what prepares nothing needs nothing
        """Who will take part, for each run a list of clients for each round."""

    def train(self, round_: Round, turns: Sequence[Turn], then: Sequence[Turn] = ()) -> list[Trained]:
        """Each client takes in what it received, trains as its method says, and makes its upload.

        `then` are the next round's turns, as far as they are known: what can be prepared for them while a device works, is.
        """
        return self.encoded(self.trained(round_, turns, then), round_)

    @abstractmethod
    def trained(self, round_: Round, turns: Sequence[Turn], then: Sequence[Turn] = ()) -> list[Trained]:
        """The same, with uploads that are not encoded yet."""

    def evaluate(self, turns: Sequence[Turn], modes: Sequence[str]) -> list[CorrectCounts]:
        """How many of its test samples each client gets right: as it is, and after taking in what it received, if it did."""
        if absent := set(modes) - set(self.setting.method.modes):
            method = self.setting.method
            raise UserError(f"{method.name} as it is set has no mode {min(absent)!r}; it has {', '.join(method.modes)}")
        return self._evaluate(turns, modes)

    @abstractmethod
    def _evaluate(self, turns: Sequence[Turn], modes: Sequence[str]) -> list[CorrectCounts]:
        """The same, for modes that the method has."""

    def encoded(self, outcomes: Sequence[Trained], round_: Round) -> list[Trained]:
        """The outcomes with their uploads as they travel, laid out row by row however the engine holds its tensors."""
        method = self.setting.method
        if type(method).encode is not Method.encode:  # it looks at numbers, and NaN is none
            sound = [broken(*told) is None for told in numbers([outcome.told for outcome in outcomes])]
            uploads = [outcome.upload for outcome, is_sound in zip(outcomes, sound, strict=True) if is_sound]
            contents = iter(method.encode(uploads, round_))
            pairs = zip(outcomes, sound, strict=True)
            outcomes = [replace(outcome, upload=next(contents) if is_sound else {}) for outcome, is_sound in pairs]
        return [replace(o, upload={name: tensor.contiguous() for name, tensor in o.upload.items()}) for o in outcomes]

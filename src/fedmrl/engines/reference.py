"""The reference engine: one client after another, as in the paper's algorithm; other engines are tested against it."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from fedmrl.data.plan import Samples, plan
from fedmrl.engines.base import CorrectCounts, Engine, Setting, Trained, Turn, failures_told, numerics
from fedmrl.messages import copy
from fedmrl.methods import Batch, ClientNet, Round
from fedmrl.models import ModelSpec, Split, is_own
from fedmrl.randomness import torch_seeded
from fedmrl.training import Phase, Sums

EVALUATION_BATCH = 128  # samples: with more, a layer's output does not fit into a CPU's cache
Result = TypeVar("Result")


class ReferenceEngine(Engine):
    """Trains one client after another, on one net per kind of model, into which each client's state is loaded.

    On a CPU, clients run in parallel on torch's threads, as a small model keeps only one core busy.
    """

    name: ClassVar[str] = "reference"

    def __init__(self, *settings: Setting) -> None:
        super().__init__(*settings)
        setting = self.setting
        self.samples = Samples(setting.data, setting.device, setting.dtype, channels_last=setting.device.type == "cpu")
        self._own = threading.local()  # each thread has its own nets
        self._pool: ThreadPoolExecutor | None = None
        self._threads = torch.get_num_threads() if setting.device.type == "cpu" and not draws_in_training(setting) else 1

    def trained(self, round_: Round, turns: Sequence[Turn], then: Sequence[Turn] = ()) -> list[Trained]:
        """See `Engine.trained`."""
        return self._each(turns, lambda turn: self._train_one(round_, turn), f"in round {round_.index + 1}", "trains")

    def _evaluate(self, turns: Sequence[Turn], modes: Sequence[str]) -> list[CorrectCounts]:
        """See `Engine.evaluate`."""
        return self._each(turns, lambda turn: self._evaluate_one(turn, modes), "with its test samples", "predicts")

    def _each(self, turns: Sequence[Turn], work: Callable[[Turn], Result], when: str, does: str) -> list[Result]:
        """Does the work for each turn, one by one or in parallel, as turns are independent."""

        def in_precision(turn: Turn) -> Result:
            models = [self.settings[turn.run].members[turn.client].model]
            with (
                failures_told(models, f"client {turn.client}, {when}", does, self.setting.method),
                numerics(self.setting.training.precision, self.setting.device),
            ):
                return work(turn)

        workers = min(self._threads, len(turns))
        if workers < 2:
            return [in_precision(turn) for turn in turns]

        def with_its_share(turn: Turn) -> Result:
            torch.set_num_threads(threads_each(self._threads, workers))  # for this thread only
            return in_precision(turn)

        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fedmrl")
        try:
            return list(self._pool.map(with_its_share, turns))
        finally:
            torch.set_num_threads(self._threads)  # later threads inherit the last number set

    def _net(self, turn: Turn) -> ClientNet:
        """A net with the client's state."""
        setting = self.settings[turn.run]
        spec = setting.members[turn.client].model
        nets: dict[ModelSpec, ClientNet] = self._own.__dict__.setdefault("nets", {})
        if spec not in nets:
            nets[spec] = setting.fresh_net(turn.client).to(memory_format=self._layout(turn))  # type: ignore[call-overload]
        nets[spec].load_state_dict(turn.state)
        return nets[spec]

    def _layout(self, turn: Turn) -> torch.memory_format:
        """The memory format of the client's images and convolutions: on a CPU channels last, which is a quarter faster.

        A user's own model gets contiguous images, as it may rely on them.
        """
        setting = self.settings[turn.run]
        contiguous = setting.device.type != "cpu" or is_own(setting.members[turn.client].model)
        return torch.contiguous_format if contiguous else torch.channels_last

    def _laid_out(self, x: Tensor, turn: Turn) -> Tensor:
        return x.contiguous(memory_format=self._layout(turn)) if x.ndim == 4 else x

    def _train_one(self, round_: Round, turn: Turn) -> Trained:
        setting = self.settings[turn.run]
        method, training = setting.method, setting.training
        net, loss, sums = self._net(turn), math.nan, Sums()
        if turn.received is not None:
            method.receive(net, turn.received)
        seeded = torch_seeded(setting.seed, "dropout", round_.index, turn.client) if self._threads == 1 else nullcontext()
        with seeded:
            for phase in method.phases(training, turn.earlier):
                loss, sums = self._train_phase(net, phase, round_, turn)
        state = copy(net.state_dict())
        finite = all(torch.isfinite(parameter).all() for parameter in net.parameters())
        upload = method.upload(net, sums, round_) if finite and math.isfinite(loss) else {}
        return Trained(turn.client, state, upload, torch.tensor([loss, float(finite)], dtype=torch.float64))

    def _train_phase(self, net: ClientNet, phase: Phase, round_: Round, turn: Turn) -> tuple[float, Sums]:
        """The mean loss over the samples seen, and the loss's sums."""
        setting = self.settings[turn.run]
        own = setting.subsets(turn.client)[phase.subset]
        order = plan(setting.seed, round_.index, turn.client, own, phase)
        optimiser = optimiser_of(net, phase)
        total, seen, sums = torch.zeros((), device=setting.device, dtype=torch.float64), 0, Sums()
        for epoch, x, y_B in self.samples.batches(order, setting.training.batch_size, phase.augment):
            outcome = phase.loss(net, Batch(self._laid_out(x, turn), y_B))
            loss, added = outcome if isinstance(outcome, tuple) else (outcome, {})
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            take_step(net, optimiser, phase)
            total += loss.detach() * len(y_B)
            seen += len(y_B)
            if phase.sums_of == "all epochs" or epoch == phase.epochs - 1:
                wide = {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in added.items()}
                sums = {name: sums[name] + value if sums else value for name, value in wide.items()}
        return float(total) / seen, sums

    @torch.no_grad()
    def _evaluate_one(self, turn: Turn, modes: Sequence[str]) -> CorrectCounts:
        net = self._net(turn).eval()
        with _FeatureCache(net) as cache:
            correct = {"own": self._correct(net, turn, modes, cache)}
            if turn.received is not None:
                self.setting.method.receive(net, turn.received)
                cache.keep_unchanged(turn.state)
                correct["aggregated"] = self._correct(net, turn, modes, cache)
        return correct

    def _correct(self, net: ClientNet, turn: Turn, modes: Sequence[str], cache: "_FeatureCache") -> dict[str, int]:
        test = self.settings[turn.run].members[turn.client].test
        correct = dict.fromkeys(modes, 0)
        for start in range(0, len(test), EVALUATION_BATCH):
            x, y_B = self.samples.take(test[start : start + EVALUATION_BATCH])
            x = self._laid_out(x, turn)
            cache.look_at(start, x)
            for mode in modes:
                score_B, label_B = self.setting.method.predict(net, x, mode).max(dim=-1)
                correct[mode] += int(((label_B == y_B) & (score_B > -torch.inf)).sum())
        return correct


class _FeatureCache:
    """A context that caches extractors' outputs, so that modes and views share them for equal samples and weights."""

    def __init__(self, net: ClientNet) -> None:
        self.net = net
        self.extractors = {name: part.extractor for name, part in net.named_children() if isinstance(part, Split)}
        self.outputs: dict[tuple[str, int], Tensor] = {}
        self.batch, self.x = 0, torch.empty(0)

    def __enter__(self) -> "_FeatureCache":
        for name, extractor in self.extractors.items():
            extractor.forward = partial(self._cached, name, extractor.forward)
        return self

    def __exit__(self, *_: object) -> None:
        for extractor in self.extractors.values():
            del extractor.forward  # restores the class's method

    def look_at(self, batch: int, x: Tensor) -> None:
        """Sets the current batch of samples."""
        self.batch, self.x = batch, x

    def keep_unchanged(self, before: Mapping[str, Tensor]) -> None:
        """Drops the outputs of extractors whose tensors have changed."""
        for name, extractor in self.extractors.items():
            now = extractor.state_dict(prefix=f"{name}.extractor.")
            if not all(torch.equal(tensor, before[key]) for key, tensor in now.items()):
                self.outputs = {key: value for key, value in self.outputs.items() if key[0] != name}

    def _cached(self, name: str, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if x is not self.x:
            return forward(x)
        if (name, self.batch) not in self.outputs:
            self.outputs[name, self.batch] = forward(x)
        return self.outputs[name, self.batch]


def draws_in_training(setting: Setting) -> bool:
    """Whether a model draws random numbers in training, which threads cannot share reproducibly."""
    return any(_draws(setting, client) for client in setting.models.values())


def threads_each(threads: int, turns: int) -> int:
    """The threads that each of so many clients gets, of all; a sum over threads rounds differently with their number."""
    return threads // max(1, min(threads, turns))


def _draws(setting: Setting, client: int) -> bool:
    """Whether training this client's net changes the state of torch's generator."""
    net, models = setting.fresh_net(client), [setting.members[client].model]
    x = setting.data.blank(2, torch.device("cpu"), setting.dtype)  # batch normalisation needs two samples
    y_B = torch.zeros(2, dtype=torch.long)
    for phase in setting.method.phases(setting.training, earlier=1):
        net.learn(phase.lr)
        with torch_seeded(setting.seed, "draws"):
            before = torch.get_rng_state()
            with failures_told(models, f"client {client}", "trains", setting.method):
                phase.loss(net, Batch(x, y_B))
            if not torch.equal(before, torch.get_rng_state()):
                return True
    return False


def optimiser_of(net: ClientNet, phase: Phase) -> torch.optim.SGD:
    """A new SGD optimiser over the parts that learn in this phase, without momentum from earlier ones."""
    net.learn(phase.lr)
    groups = [
        {"params": [p for p in net.get_submodule(part).parameters() if p.requires_grad], "lr": lr}
        for part, lr in phase.lr.items()
    ]
    # Fused: one kernel instead of a loop over the parameters, on every device.
    return torch.optim.SGD(groups, momentum=phase.momentum, weight_decay=phase.weight_decay, fused=True)


def take_step(net: ClientNet, optimiser: torch.optim.SGD, phase: Phase) -> None:
    """Clips gradients, steps, and clamps parameters to their bounds."""
    if phase.clip is not None:
        for part in phase.lr:
            _clip(net.get_submodule(part), phase.clip)
    optimiser.step()
    for name, (low, high) in phase.bounds.items():
        with torch.no_grad():
            net.get_parameter(name).clamp_(low, high)


def _clip(part: nn.Module, clip: float) -> None:
    """Clips like torch's `clip_grad_norm_`, but does not zero gradients whose squares overflow 32 bits."""
    gradients = [p.grad for p in part.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if not torch.isfinite(norm):
        norm = nn.utils.get_total_norm([gradient.double() for gradient in gradients])
    nn.utils.clip_grads_with_norm_(part.parameters(), clip, norm)

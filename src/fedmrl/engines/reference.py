"""The reference engine: one client after another, as plain as the paper's algorithm. The oracle for all others."""

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

EVALUATION_BATCH = 128  # samples: with more, what a layer puts out does not fit into a CPU's cache
Result = TypeVar("Result")


class ReferenceEngine(Engine):
    """One client after another, on one net for each kind of model that takes on the client's state for its turn.

    On a CPU, as many go side by side as torch may use threads: a small model keeps one core busy, not two.
    """

    name: ClassVar[str] = "reference"

    def __init__(self, *settings: Setting) -> None:
        super().__init__(*settings)
        setting = self.setting
        self.samples = Samples(setting.data, setting.device, setting.dtype, channels_last=setting.device.type == "cpu")
        self._own = threading.local()  # each thread has its own nets
        self._pool: ThreadPoolExecutor | None = None
        self._threads = torch.get_num_threads() if setting.device.type == "cpu" and not self._draws() else 1

    def trained(self, round_: Round, turns: Sequence[Turn], then: Sequence[Turn] = ()) -> list[Trained]:
        """See `Engine.trained`."""
        return self._each(turns, lambda turn: self._train_one(round_, turn), f"in round {round_.index + 1}", "trains")

    def _evaluate(self, turns: Sequence[Turn], modes: Sequence[str]) -> list[CorrectCounts]:
        """See `Engine.evaluate`."""
        return self._each(turns, lambda turn: self._evaluate_one(turn, modes), "with its test samples", "predicts")

    def _each(self, turns: Sequence[Turn], work: Callable[[Turn], Result], when: str, does: str) -> list[Result]:
        """The work for each turn, in order or side by side: no turn knows of another."""

        def in_precision(turn: Turn) -> Result:
            models = [self.settings[turn.run].members[turn.client].model]
            with (
                failures_told(models, f"client {turn.client}, {when}", does),
                numerics(self.setting.training.precision, self.setting.device),
            ):
                return work(turn)

        beside = min(self._threads, len(turns))
        if beside < 2:
            return [in_precision(turn) for turn in turns]

        def with_its_share(turn: Turn) -> Result:
            torch.set_num_threads(self._threads // beside)  # of this thread's own work
            return in_precision(turn)

        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fedmrl")
        try:
            return list(self._pool.map(with_its_share, turns))
        finally:
            torch.set_num_threads(self._threads)  # threads that start later take the number that was set last

    def _draws(self) -> bool:
        """Whether some model draws random numbers as it trains. All threads would draw from one generator."""
        return any(_draws(self.setting, client) for client in self.setting.models.values())

    def _net(self, turn: Turn) -> ClientNet:
        """The client's net, as it was."""
        setting = self.settings[turn.run]
        spec = setting.members[turn.client].model
        nets: dict[ModelSpec, ClientNet] = self._own.__dict__.setdefault("nets", {})
        if spec not in nets:
            nets[spec] = setting.fresh_net(turn.client).to(memory_format=self._layout(turn))  # type: ignore[call-overload]
        nets[spec].load_state_dict(turn.state)
        return nets[spec]

    def _layout(self, turn: Turn) -> torch.memory_format:
        """How the client's images and convolutions lie in memory: on a CPU channels last, which is a quarter faster there.

        A user's model may have been written for images that are laid out as usual. Other clients' models do not matter.
        """
        setting = self.settings[turn.run]
        usual = setting.device.type != "cpu" or is_own(setting.members[turn.client].model)
        return torch.contiguous_format if usual else torch.channels_last

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
        """The mean loss over the samples seen, and what the loss added up beside it."""
        setting = self.settings[turn.run]
        own = setting.subsets(turn.client)[phase.subset]
        order = plan(setting.seed, round_.index, turn.client, own, phase)
        optimiser = _optimiser(net, phase)
        total, seen, sums = torch.zeros((), device=setting.device, dtype=torch.float64), 0, Sums()
        for epoch, x, y_B in self.samples.batches(order, setting.training.batch_size, phase.augment):
            outcome = phase.loss(net, Batch(self._laid_out(x, turn), y_B))
            loss, added = outcome if isinstance(outcome, tuple) else (outcome, {})
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            _step(net, optimiser, phase)
            total += loss.detach() * len(y_B)
            seen += len(y_B)
            if phase.sums_of == "all epochs" or epoch == phase.epochs - 1:
                wide = {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in added.items()}
                sums = {name: sums[name] + value if sums else value for name, value in wide.items()}
        return float(total) / seen, sums

    @torch.no_grad()
    def _evaluate_one(self, turn: Turn, modes: Sequence[str]) -> CorrectCounts:
        net = self._net(turn).eval()
        with _Memory(net) as memory:
            right = {"own": self._right(net, turn, modes, memory)}
            if turn.received is not None:
                self.setting.method.receive(net, turn.received)
                memory.keep_unchanged(turn.state)
                right["aggregated"] = self._right(net, turn, modes, memory)
        return right

    def _right(self, net: ClientNet, turn: Turn, modes: Sequence[str], memory: "_Memory") -> dict[str, int]:
        test = self.settings[turn.run].members[turn.client].test
        right = dict.fromkeys(modes, 0)
        for start in range(0, len(test), EVALUATION_BATCH):
            x, y_B = self.samples.take(test[start : start + EVALUATION_BATCH])
            x = self._laid_out(x, turn)
            memory.look_at(start, x)
            for mode in modes:
                score_B, label_B = self.setting.method.predict(net, x, mode).max(dim=-1)
                right[mode] += int(((label_B == y_B) & (score_B > -torch.inf)).sum())
        return right


class _Memory:
    """While it is open, an extractor that sees the same samples again, with the same weights, says what it said before.

    So the ways to predict, and the views before and after an answer, share what they have in common.
    """

    def __init__(self, net: ClientNet) -> None:
        self.net = net
        self.extractors = {name: part.extractor for name, part in net.named_children() if isinstance(part, Split)}
        self.said: dict[tuple[str, int], Tensor] = {}
        self.batch, self.x = 0, torch.empty(0)

    def __enter__(self) -> "_Memory":
        for name, extractor in self.extractors.items():
            extractor.forward = partial(self._ask, name, extractor.forward)
        return self

    def __exit__(self, *_: object) -> None:
        for extractor in self.extractors.values():
            del extractor.forward  # the instance's; the class's own is back

    def look_at(self, batch: int, x: Tensor) -> None:
        """From now on the samples are these."""
        self.batch, self.x = batch, x

    def keep_unchanged(self, before: Mapping[str, Tensor]) -> None:
        """Forget what extractors said whose tensors are not as before."""
        for name, extractor in self.extractors.items():
            now = extractor.state_dict(prefix=f"{name}.extractor.")
            if not all(torch.equal(tensor, before[key]) for key, tensor in now.items()):
                self.said = {key: value for key, value in self.said.items() if key[0] != name}

    def _ask(self, name: str, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if x is not self.x:
            return forward(x)
        if (name, self.batch) not in self.said:
            self.said[name, self.batch] = forward(x)
        return self.said[name, self.batch]


def _draws(setting: Setting, client: int) -> bool:
    """Whether a step of this client's net changes the state of torch's generator."""
    net, models = setting.fresh_net(client), [setting.members[client].model]
    x = torch.zeros(2, *setting.data.shape, dtype=setting.dtype)  # one would be too few for layers that normalise over it
    y_B = torch.zeros(2, dtype=torch.long)
    for phase in setting.method.phases(setting.training, earlier=1):
        net.learn(phase.lr)
        with torch_seeded(setting.seed, "draws"):
            before = torch.get_rng_state()
            with failures_told(models, f"client {client}", "trains"):
                phase.loss(net, Batch(x, y_B))
            if not torch.equal(before, torch.get_rng_state()):
                return True
    return False


def _optimiser(net: ClientNet, phase: Phase) -> torch.optim.SGD:
    """SGD over the parts that learn, its momentum empty: it is new for each client, round and phase. The rest is fixed."""
    net.learn(phase.lr)
    groups = [
        {"params": [p for p in net.get_submodule(part).parameters() if p.requires_grad], "lr": lr}
        for part, lr in phase.lr.items()
    ]
    # One fused kernel does on every device what a loop over the parameters would.
    return torch.optim.SGD(groups, momentum=phase.momentum, weight_decay=phase.weight_decay, fused=True)


def _step(net: ClientNet, optimiser: torch.optim.SGD, phase: Phase) -> None:
    if phase.clip is not None:
        for part in phase.lr:
            _clip(net.get_submodule(part), phase.clip)
    optimiser.step()
    for name, (low, high) in phase.bounds.items():
        with torch.no_grad():
            net.get_parameter(name).clamp_(low, high)


def _clip(part: nn.Module, clip: float) -> None:
    """As torch's clip_grad_norm_ has it, which would make zero of a gradient whose squares are too large for 32 bits."""
    gradients = [p.grad for p in part.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if not torch.isfinite(norm):
        norm = nn.utils.get_total_norm([gradient.double() for gradient in gradients])
    nn.utils.clip_grads_with_norm_(part.parameters(), clip, norm)

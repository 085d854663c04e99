"""Programs that train or evaluate K clients at once, step by step.

A program works on memory that stays in place: the stacked tensors, the plan of all steps, and a step counter on the device.
So one step can be compiled, captured as a CUDA graph, and replayed for all steps without the host.

Legend of shapes: S steps, K clients, B batch, E epochs, N a client's samples.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmrl.data.plan import Plan, Samples, augmented, shown
from fedmrl.engines.base import numerics
from fedmrl.engines.runner import Runner
from fedmrl.engines.stack import Slots, gradients, scores
from fedmrl.messages import Tensors
from fedmrl.methods import Batch, Method
from fedmrl.training import Augmentation, Phase, Sums

_SETTINGS = ("momentum", "weight_decay", "clip")  # settings of a phase with one value per client


class BatchFeed:
    """The indices of each client's samples in each step, with their augmentation; -1 - i marks sample i as padding."""

    def __init__(self, steps: int, clients: int, batch: int, samples: Samples, augment: Augmentation) -> None:
        self.augment, self.tokens = augment, samples.tokens
        device = samples.device
        index_SKB = torch.full((steps, clients, batch), -1, dtype=torch.int32, device=device)
        step = torch.zeros(1, dtype=torch.int64, device=device)
        self.fed: Tensors = {"index": index_SKB, "step": step, "x": samples.x, "y": samples.y}
        self.fed |= {"mean": samples.mean, "std": samples.std}
        if augment.active:
            self.fed["draws"] = torch.zeros(steps, clients, batch, 8, device=device)

    def load(self, plans: Mapping[int, Plan]) -> int:
        """Loads the plans of the clients in these slots and returns the number of steps."""
        _, K, B = self.fed["index"].shape
        # Rows are padded with one of the client's own samples: a mask could not undo another client's sample, since zero
        # times infinity is not zero.
        fill = {slot: -1 - int(plan.order_EN.flat[0]) for slot, plan in plans.items()}
        rows = {slot: _in_batches(plan.order_EN.astype(np.int32), B, fill[slot]) for slot, plan in plans.items()}
        steps = max((len(batches) for batches in rows.values()), default=0)
        table = np.full((steps, K, B), -1, dtype=np.int32)
        for slot, marked in fill.items():
            table[:, slot] = marked
        self._put("index", steps, rows, table)
        if "draws" in self.fed:
            drawn = {k: _in_batches(plan.draws_EN8, B, fill=0) for k, plan in plans.items() if plan.draws_EN8 is not None}
            self._put("draws", steps, drawn, np.zeros((steps, K, B, 8), dtype=np.float32))
        self.fed["step"].zero_()
        return steps

    def _put(self, name: str, steps: int, rows: Mapping[int, np.ndarray], table: np.ndarray) -> None:
        for slot, batches in rows.items():
            table[: len(batches), slot] = batches
        self.fed[name][:steps].copy_(torch.from_numpy(table), non_blocking=True)

    def gather(self, fed: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """This step's inputs, labels, mask and number; advances the counter."""
        step = fed["step"]
        # Warm-up before a capture may run more steps than the plan has.
        row = step % len(fed["index"])
        index_KB = fed["index"].index_select(0, row)[0]
        flat = torch.where(index_KB < 0, -1 - index_KB, index_KB).flatten().long()
        raw, y = fed["x"][flat], fed["y"][flat]
        if "draws" in fed:
            draws = fed["draws"].index_select(0, row)[0].flatten(0, 1)
            x = augmented(raw, fed["mean"], fed["std"], draws, self.augment)
        else:
            x = raw if self.tokens else shown(raw, fed["mean"], fed["std"])
        number = step.clone()
        step.add_(1)
        mask_KB = (index_KB >= 0).to(fed["mean"].dtype)
        return x.view(*index_KB.shape, *x.shape[1:]), y.view(index_KB.shape), mask_KB, number


def _in_batches(rows_EN: np.ndarray, B: int, fill: int) -> np.ndarray:
    """Each epoch cut into batches, the last one padded."""
    E, N = rows_EN.shape[:2]
    batches = -(-N // B)
    filled = np.full((E, batches * B, *rows_EN.shape[2:]), fill, dtype=rows_EN.dtype)
    filled[:, :N] = rows_EN
    return filled.reshape(E * batches, B, *rows_EN.shape[2:])


class Trainer:
    """Runs one kind of phase for the clients in the slots: SGD on all of them at once."""

    def __init__(self, slots: Slots, phase: Phase, schedule: BatchFeed, runner: Runner) -> None:
        self.slots, self.phase, self.schedule = slots, phase, schedule
        self.net = slots.family.net
        self.net.learn(phase.lr)
        batch = schedule.gather(schedule.fed)
        self._used = _used(self.net, phase, batch)
        self._stretches = list(_stretches(slots, phase, self._used))
        learned = {stretch.leaf: slots.leaves[stretch.leaf] for stretch in self._stretches}
        fixed = {name: tensor for name, tensor in slots.tensors.items() if name not in slots.unpacked(learned)}
        K, like = slots.count, schedule.fed["mean"]
        with numerics(runner.precision, runner.device):
            _, _, sums = self._gradients(learned, fixed, *batch[:3])
        self.state: dict[str, Any] = {
            "learned": learned,
            "fixed": fixed,
            "velocity": {name: torch.zeros_like(leaf) for name, leaf in learned.items()} if phase.momentum else {},
            "rates": {part: like.new_zeros(K) for part in phase.lr},
            **{what: like.new_zeros(K) for what in ("momentum", "weight_decay", "clip")},
            "sums_from": torch.zeros(K, dtype=torch.int64, device=like.device),
            "total": torch.zeros(K, dtype=torch.float64, device=like.device),
            "sums": {name: torch.zeros_like(value) for name, value in sums.items()},
        }
        self._runner = runner
        self._advance = runner.prepared(schedule.gather, schedule.fed, self._step, self.state)
        self.steps, self.samples, self.batch = 0, 0, schedule.fed["index"].shape[2]
        """The last run's steps and training samples, and the batch size."""

    def run(self, phases: Mapping[int, Phase], plans: Mapping[int, Plan]) -> tuple[Tensor, Sums]:
        """Trains the clients in these slots; returns each slot's loss, summed over samples, and its sums."""
        self.steps, self.samples = self.schedule.load(plans), sum(plan.order_EN.size for plan in plans.values())
        state, B = self.state, self.batch
        K = self.slots.count
        columns: dict[str, list[float]] = {name: [0.0] * K for name in (*_rates(self.phase), *_SETTINGS, "sums_from")}
        for slot, phase in phases.items():
            for part, rate in phase.lr.items():
                columns[f"rate {part}"][slot] = rate
            for what in _SETTINGS:
                columns[what][slot] = getattr(phase, what) or 0.0
            E, N = plans[slot].order_EN.shape
            columns["sums_from"][slot] = (E - 1) * -(-N // B) if phase.sums_of == "last epoch" else 0
        for part, rates_K in state["rates"].items():
            _fill(rates_K, columns[f"rate {part}"])
        for what in (*_SETTINGS, "sums_from"):
            _fill(state[what], columns[what])
        torch._foreach_zero_([state["total"], *state["velocity"].values(), *state["sums"].values()])
        self.net.learn(self.phase.lr)
        self._advance(self.steps)
        return state["total"], state["sums"]

    def again(self) -> None:
        """Repeats the last run's steps, to time them."""
        self.slots.states = []
        self.schedule.fed["step"].zero_()
        self._advance(self.steps)

    def gather_again(self) -> Callable[[], None]:
        """A function that only fetches the last run's batches again, to time that."""
        advance = self._runner.prepared(self.schedule.gather, self.schedule.fed, lambda state, *batch: None, {})

        def again() -> None:
            self.schedule.fed["step"].zero_()
            advance(self.steps)

        return again

    def _step(self, state: Any, x: Tensor, y_KB: Tensor, mask_KB: Tensor, number: Tensor) -> None:
        """One step for every client that has samples in it; the others do not change."""
        of_each, losses_K, added = self._gradients(state["learned"], state["fixed"], x, y_KB, mask_KB)
        count_K = mask_KB.sum(dim=1)
        active_K = count_K > 0
        for part in self.phase.lr:
            self._update(state, part, {s: s.gradient(of_each) for s in self._stretches if s.part == part}, active_K)
        state["total"].add_(losses_K.double() * count_K.double())
        counted_K = number >= state["sums_from"]
        for name, value in added.items():
            state["sums"][name].add_(value * _spread(counted_K, value).to(value.dtype))

    def _gradients(
        self, leaves: Tensors, fixed: Tensors, x: Tensor, y_KB: Tensor, mask_KB: Tensor
    ) -> tuple[Tensors, Tensor, Sums]:
        tensors = self.slots.unpacked(leaves)
        learned = {name: tensors.pop(name) for name in self._used}
        return gradients(self.net, self.phase.loss, learned, fixed | tensors, x, y_KB, mask_KB)

    def _update(self, state: Any, part: str, of_each: Mapping["_Stretch", Tensor], active_K: Tensor) -> None:
        scale_K = None
        if self.phase.clip is not None and of_each:
            squares = [gradient.double().square().reshape(len(gradient), -1).sum(dim=1) for gradient in of_each.values()]
            wide_K = torch.stack(squares).sum(dim=0).sqrt()
            norm_K = wide_K.to(state["clip"].dtype)
            # Like torch's clip_grad_norm_, but divides in 64 bits if the norm overflows 32.
            scale_K = torch.where(norm_K.isinf(), (state["clip"] / wide_K).to(norm_K.dtype), state["clip"] / (norm_K + 1e-6))
            scale_K = scale_K.clamp(max=1.0)
        for stretch, gradient in of_each.items():
            value = stretch.of(state["learned"])
            change = gradient.to(value.dtype)
            if scale_K is not None:
                change = change * _spread(scale_K, value)
            if self.phase.weight_decay:
                change = change + _spread(state["weight_decay"], value) * value
            active = _spread(active_K, value)
            if self.phase.momentum:
                velocity = stretch.of(state["velocity"])
                change = _spread(state["momentum"], value) * velocity + change
                velocity.copy_(torch.where(active, change, velocity))
            new = value - _spread(state["rates"][part], value) * change
            if stretch.bounds:
                new = new.clamp(*stretch.bounds)
            value.copy_(torch.where(active, new, value))


@dataclass(frozen=True)
class _Stretch:
    """What one operation updates: a tensor, a pack, or consecutive tensors of a pack."""

    leaf: str
    part: str
    members: tuple[str, ...]
    bounds: tuple[float, float] | None
    columns: tuple[int, int] | None
    """The first and last column in a pack; None: all columns."""
    lengths: tuple[int, ...] = ()
    """The number of columns of each member of a pack."""

    def of(self, leaves: Tensors) -> Tensor:
        """The stretch's part of its leaf."""
        leaf = leaves[self.leaf]
        return leaf if self.columns is None else leaf[:, slice(*self.columns)]

    def gradient(self, of_each: Tensors) -> Tensor:
        """The stretch's gradient, from those of its members."""
        if not self.lengths:
            return of_each[self.leaf]
        rows = [of_each[name].reshape(len(of_each[name]), -1) for name in self.members]
        filled = [F.pad(row, (0, length - row.shape[1])) for row, length in zip(rows, self.lengths, strict=True)]
        return torch.cat(filled, dim=1)


def _stretches(slots: Slots, phase: Phase, used: Sequence[str]) -> Iterator[_Stretch]:
    """The trainable parameters in as few stretches as possible."""

    def kind(name: str) -> tuple[str, tuple[float, float] | None] | None:
        part = next((part for part in phase.lr if name.startswith(f"{part}.")), None)
        return (part, phase.bounds.get(name)) if part is not None and name in used else None

    for leaf in slots.leaves:
        pack = slots.packs.get(leaf)
        if pack is None:
            if found := kind(leaf):
                yield _Stretch(leaf, found[0], (leaf,), found[1], None)
            continue
        ends = [*list(pack.starts.values())[1:], pack.length]
        places = {name: (start, end) for (name, start), end in zip(pack.starts.items(), ends, strict=True)}
        for found, group in groupby(places, kind):
            if found:
                names = tuple(group)
                columns = (places[names[0]][0], places[names[-1]][1])
                lengths = tuple(places[name][1] - places[name][0] for name in names)
                whole = columns == (0, pack.length)
                yield _Stretch(leaf, found[0], names, found[1], None if whole else columns, lengths)


def _rates(phase: Phase) -> list[str]:
    return [f"rate {part}" for part in phase.lr]


def _fill(tensor: Tensor, values: Sequence[float]) -> None:
    tensor.copy_(torch.tensor(values, dtype=tensor.dtype), non_blocking=True)


def _spread(values_K: Tensor, like: Tensor) -> Tensor:
    """One value per client, reshaped to broadcast against a stacked tensor."""
    return values_K.view(-1, *[1] * (like.ndim - 1))


def _used(net: torch.nn.Module, phase: Phase, batch: Sequence[Tensor]) -> list[str]:
    """The parameters that the phase's loss depends on; optimisers skip the others."""
    x, y_KB, mask_KB, _ = batch
    outcome = phase.loss(net, Batch(x[0], y_KB[0], mask_KB[0]))  # type: ignore[arg-type]
    value = outcome[0] if isinstance(outcome, tuple) else outcome
    learning = {name: p for name, p in net.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(value, list(learning.values()), allow_unused=True)
    return [name for name, gradient in zip(learning, found, strict=True) if gradient is not None]


class Judge:
    """Counts the correct predictions of the clients in the slots."""

    def __init__(self, slots: Slots, method: Method, modes: Sequence[str], schedule: BatchFeed, runner: Runner) -> None:
        self.slots, self.method, self.modes, self.schedule = slots, method, modes, schedule
        device = schedule.fed["x"].device
        right = {mode: torch.zeros(slots.count, dtype=torch.int64, device=device) for mode in modes}
        self.state: dict[str, Any] = {"tensors": slots.tensors, "right": right}
        slots.family.net.eval()  # the capture below records evaluation mode
        self._advance = runner.prepared(schedule.gather, schedule.fed, self._step, self.state)

    def load(self, plans: Mapping[int, Plan]) -> int:
        """Loads the test samples of the clients in the slots and returns the number of steps."""
        return self.schedule.load(plans)

    def run(self, steps: int) -> dict[str, Tensor]:
        """The number of correct predictions of each slot's client, by mode."""
        self.schedule.fed["step"].zero_()
        torch._foreach_zero_(list(self.state["right"].values()))
        self.slots.family.net.eval()
        with torch.no_grad():
            self._advance(steps)
        return {mode: right_K.clone() for mode, right_K in self.state["right"].items()}

    def _step(self, state: Any, x: Tensor, y_KB: Tensor, mask_KB: Tensor, number: Tensor) -> None:
        for mode, right_K in state["right"].items():
            score_KB, label_KB = scores(self.slots.family.net, self.method, state["tensors"], x, mode).max(dim=-1)
            good_KB = (label_KB == y_KB) & (score_KB > -torch.inf) & (mask_KB > 0)
            right_K.add_(good_KB.sum(dim=1))

"""The batched engine: all clients of a round in one program on stacked parameters."""

import gc
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedmrl.data.plan import Plan, Samples, plan
from fedmrl.engines.base import CorrectCounts, Engine, Setting, Trained, Turn, failures_told
from fedmrl.engines.families import families
from fedmrl.engines.program import BatchFeed, Judge, Trainer
from fedmrl.engines.reference import EVALUATION_BATCH, ReferenceEngine
from fedmrl.engines.runner import Runner, Way
from fedmrl.engines.stack import Family, Slots, corner
from fedmrl.memory import free_bytes
from fedmrl.messages import Tensors, copies, copy, write
from fedmrl.methods import ClientNet, Round
from fedmrl.models import ModelSpec
from fedmrl.training import Augmentation, Phase, Sums

_FILLED = 0.8  # the share of free memory that a stack and its steps may take
_WORTH_COMPILING = 5_000_000  # the number of training samples ahead from which compiling pays off


class BatchedEngine(Engine):
    """Trains and evaluates clients of one model family as one stack, and the others one by one."""

    name: ClassVar[str] = "batched"

    def __init__(self, *settings: Setting, way: Way | None = None) -> None:
        super().__init__(*settings)
        setting = self.setting
        self.runs_ahead = setting.device.type == "cuda"
        self.samples = Samples(setting.data, setting.device, setting.dtype)
        found, self.loners = families(setting)
        self._family_of = {spec: family for family in found for spec in family.specs}
        self._alone = ReferenceEngine(*settings) if self.loners else None
        self._way = way
        self._nets: dict[ModelSpec, ClientNet] = {}
        self._constants: dict[ModelSpec, Tensors] = {}
        self._slots: dict[int, tuple[Slots, int]] = {}
        self._largest: Counter[int] = Counter()
        self._trainers: list[tuple[Slots, Any, Trainer]] = []
        self._judges: list[tuple[Slots, tuple[str, ...], Judge]] = []
        self._plans: dict[tuple[int, int, int, str, int, bool], Plan] = {}

    @property
    def trainers(self) -> list[Trainer]:
        """The training programs built so far."""
        return [trainer for _, _, trainer in self._trainers]

    @property
    def notices(self) -> list[str]:
        """See `Engine.notices`; adds a line for each kind of model that runs one by one."""
        slower = "is run one client at a time, which is slower and gives the same numbers"
        lines = (f"{loner.spec.label} {slower}: {loner.reason}" for loner in self.loners)
        return [*super().notices, *dict.fromkeys(lines)]

    def foresee(self, rounds: Sequence[Sequence[Sequence[int]]]) -> None:
        """See `Engine.foresee`; makes stacks large enough for all rounds, so that a resumed run has the same ones."""
        for clients_of_runs in zip(*rounds, strict=True):
            members = Counter(
                id(self._family_of[setting.members[client].model])
                for setting, clients in zip(self.settings, clients_of_runs, strict=True)
                for client in clients
                if setting.members[client].model in self._family_of
            )
            self._largest |= members

    def trained(self, round_: Round, turns: Sequence[Turn], then: Sequence[Turn] = ()) -> list[Trained]:
        """See `Engine.trained`."""
        if self._way is None:
            self._way = self._choose_way(round_, turns)
        outcomes: dict[tuple[int, int], Trained] = {}
        for slots, together in self._stacks(turns, grow=True):
            specs, method = [self._spec(turn) for turn in together], self.setting.method
            with failures_told(specs, f"round {round_.index + 1}", "trains", method):
                found = self._train_stack(slots, round_, together)
            for turn, outcome in zip(together, found, strict=True):
                outcomes[turn.run, turn.client] = outcome
        self._prepare_plans(replace(round_, index=round_.index + 1), then)
        if self._alone and (alone := self._loners_of(turns)):
            for turn, outcome in zip(alone, self._alone.trained(round_, alone), strict=True):
                outcomes[turn.run, turn.client] = outcome
        return [outcomes[turn.run, turn.client] for turn in turns]

    def _evaluate(self, turns: Sequence[Turn], modes: Sequence[str]) -> list[CorrectCounts]:
        """See `Engine.evaluate`."""
        counts: dict[tuple[int, int], dict[str, dict[str, Tensor]]] = defaultdict(dict)
        for slots, together in self._stacks(turns):
            specs, method = [self._spec(turn) for turn in together], self.setting.method
            with failures_told(specs, "with test samples", "predicts", method):
                self._evaluate_stack(slots, together, modes, counts)
        results: dict[tuple[int, int], CorrectCounts] = _fetched(counts)
        if self._alone and (alone := self._loners_of(turns)):
            for turn, of_one in zip(alone, self._alone.evaluate(alone, modes), strict=True):
                results[turn.run, turn.client] = of_one
        return [results[turn.run, turn.client] for turn in turns]

    def _evaluate_stack(
        self,
        slots: Slots,
        together: Sequence[Turn],
        modes: Sequence[str],
        counts: dict[tuple[int, int], dict[str, dict[str, Tensor]]],
    ) -> None:
        """Adds these clients' correct predictions to `counts`, by run and client, view and mode."""
        judge = self._judge(slots, modes)
        steps = judge.load(self._tests(together))
        self._seat(slots, together)
        views = ["own"]
        if any(turn.received is not None for turn in together):
            views.append("aggregated")
        for view in views:
            if view == "aggregated":
                self._receive(slots, together)
            right = judge.run(steps)
            for slot, turn in enumerate(together):
                if view == "own" or turn.received is not None:
                    counts[turn.run, turn.client][view] = {mode: right_K[slot] for mode, right_K in right.items()}

    # ---- slots ----

    def _spec(self, turn: Turn) -> ModelSpec:
        return self.settings[turn.run].members[turn.client].model

    def _loners_of(self, turns: Sequence[Turn]) -> list[Turn]:
        return [turn for turn in turns if self._spec(turn) not in self._family_of]

    def _stacks(self, turns: Sequence[Turn], grow: bool = False) -> Iterable[tuple[Slots, list[Turn]]]:
        """The turns by family, in groups of as many as there are slots; `grow` adds slots where turns exceed them."""
        by_family: dict[int, tuple[Family, list[Turn]]] = {}
        for turn in turns:
            if family := self._family_of.get(self._spec(turn)):
                by_family.setdefault(id(family), (family, []))[1].append(turn)
        for family, members in by_family.values():
            slots = self._slots_for(family, len(members), grow)
            for first in range(0, len(members), slots.count):
                yield slots, members[first : first + slots.count]

    def _slots_for(self, family: Family, requested: int, grow: bool) -> Slots:
        slots, asked = self._slots.get(id(family), (None, 0))
        requested = max(requested, self._largest[id(family)])
        if slots is None or (grow and requested > asked):
            # Free the smaller stack first, with everything that refers to its memory.
            for spec in family.specs:
                self._nets.pop(spec, None)
            self._trainers = [known for known in self._trainers if known[0] is not slots]
            self._judges = [known for known in self._judges if known[0] is not slots]
            self._slots.pop(id(family), None)
            slots = None
            slots = Slots(family, self._fitting(family, requested))
            self._slots[id(family)] = (slots, requested)
        return slots

    def _fitting(self, family: Family, requested: int) -> int:
        """How many clients are trained at once: all, or equal groups that fit into memory."""
        gc.collect()  # dropped programs form reference cycles, which hold memory until collected
        longest = max(len(member.train) for setting in self.settings for member in setting.members.values())
        each = family.bytes_of_client + min(self.setting.training.batch_size, longest) * family.bytes_of_sample
        at_once = max(1, int(_FILLED * free_bytes(self.setting.device) // each))
        chosen = -(-requested // -(-requested // at_once))
        if chosen < requested:
            self.tell(f"{chosen} of {requested} clients are trained at once, as more do not fit into memory")
        return chosen

    def _seat(self, slots: Slots, turns: Sequence[Turn]) -> None:
        """Copies the clients' states into the slots, unless they are still there from training."""
        if slots.hold([turn.state for turn in turns]):
            return
        slots.clear()
        into: list[Tensor] = []
        values: list[Tensor] = []
        for slot, turn in enumerate(turns):
            views = slots.views(self._net(turn), slot)
            for name, value in (turn.state | self._constants[self._spec(turn)]).items():
                into.append(views[name])
                values.append(value)
        write(into, values)
        slots.states = [turn.state for turn in turns]

    def _receive(self, slots: Slots, turns: Sequence[Turn]) -> None:
        slots.states = []
        for slot, turn in enumerate(turns):
            if turn.received is not None:
                self.setting.method.receive(self._seated(slots, slot, turn), turn.received)

    def _net(self, turn: Turn) -> ClientNet:
        """A net of the client's kind of model."""
        spec = self._spec(turn)
        if spec not in self._nets:
            net = self._nets[spec] = self.settings[turn.run].fresh_net(turn.client)
            persistent = net.state_dict()
            self._constants[spec] = copy({name: b for name, b in net.named_buffers() if name not in persistent})
        return self._nets[spec]

    def _seated(self, slots: Slots, slot: int, turn: Turn) -> ClientNet:
        """The client's net, with the slot's tensors."""
        net = self._net(turn)
        slots.seat(net, slot)
        return net

    # ---- training ----

    def _train_stack(self, slots: Slots, round_: Round, turns: Sequence[Turn]) -> list[Trained]:
        method, training = self.setting.method, self.setting.training
        self._seat(slots, turns)
        self._receive(slots, turns)
        left = {slot: list(method.phases(training, turn.earlier)) for slot, turn in enumerate(turns)}
        losses: dict[int, Tensor] = {}
        sums: dict[int, Sums] = {}
        while left:
            kind = _kind(_next_phase(list(left.values())))
            phases = {slot: phases.pop(0) for slot, phases in left.items() if _kind(phases[0]) == kind}
            plans = {slot: self._plan(turns[slot], round_, phase) for slot, phase in phases.items()}
            total_K, added = self._trainer(slots, next(iter(phases.values()))).run(phases, plans)
            for slot in phases:
                losses[slot] = total_K[slot] / plans[slot].order_EN.size
                shapes = slots.family.sums[self._spec(turns[slot])]
                sums[slot] = {n: v[slot][corner(shapes.get(n, v.shape[1:]))].clone() for n, v in added.items()}
            left = {slot: phases for slot, phases in left.items() if phases}
        # All of this is queued while the device still trains; nothing waits until the numbers are read.
        told_K2 = torch.stack([torch.stack([losses[slot] for slot in range(len(turns))]), _finite(slots)[: len(turns)]], dim=1)
        slots.states = self._trained_states(slots, turns)
        return [
            Trained(
                turn.client,
                slots.states[slot],
                method.upload(self._seated(slots, slot, turn), sums[slot], round_),
                told_K2[slot],
            )
            for slot, turn in enumerate(turns)
        ]

    def _trained_states(self, slots: Slots, turns: Sequence[Turn]) -> list[Tensors]:
        """Copies of the clients' states."""
        views = [slots.views(self._net(turn), slot) for slot, turn in enumerate(turns)]
        copied = iter(copies([of_one[name] for of_one, turn in zip(views, turns, strict=True) for name in turn.state]))
        return [{name: next(copied) for name in turn.state} for turn in turns]

    def _plan(self, turn: Turn, round_: Round, phase: Phase) -> Plan:
        key = (round_.index, turn.run, turn.client, phase.subset, phase.epochs, phase.augment.active)
        if key not in self._plans:
            self._plans[key] = self._new_plan(turn, round_, phase)
        return self._plans[key]

    def _new_plan(self, turn: Turn, round_: Round, phase: Phase) -> Plan:
        setting = self.settings[turn.run]
        return plan(setting.seed, round_.index, turn.client, setting.subsets(turn.client)[phase.subset], phase)

    def _prepare_plans(self, round_: Round, turns: Sequence[Turn]) -> None:
        """Makes the plans of the next round while the device works on this one."""
        self._plans = {}
        for turn in turns:
            if self._spec(turn) in self._family_of:
                for phase in self.setting.method.phases(self.setting.training, turn.earlier):
                    self._plan(turn, round_, phase)

    def _trainer(self, slots: Slots, phase: Phase) -> Trainer:
        for known_slots, kind, trainer in self._trainers:
            if known_slots is slots and kind == _kind(phase):
                return trainer
        longest = max(len(setting.subsets(client)[phase.subset]) for setting in self.settings for client in setting.members)
        B = min(self.setting.training.batch_size, longest)
        schedule = BatchFeed(phase.epochs * -(-longest // B), slots.count, B, self.samples, phase.augment)
        try:
            trainer = Trainer(slots, phase, schedule, self._runner())
        except Exception as error:  # the compiler may fail on code that runs well uncompiled
            if self._way != "compiled" or isinstance(error, torch.OutOfMemoryError):
                raise
            first = next(iter(str(error).splitlines()), type(error).__name__)
            self.tell(f"a step cannot be compiled here ({first}); it runs uncompiled, which is slower")
            self._way = "captured" if self.setting.device.type == "cuda" else "eager"
            trainer = Trainer(slots, phase, schedule, self._runner())
        self._trainers.append((slots, _kind(phase), trainer))
        return trainer

    def _choose_way(self, round_: Round, turns: Sequence[Turn]) -> Way:
        """How to run steps: compiling takes half a minute, which pays off in long runs only."""
        if self.setting.device.type != "cuda":
            return "eager"
        samples = sum(len(self.settings[turn.run].members[turn.client].train) for turn in turns)
        work = samples * self.setting.training.epochs * (round_.total - round_.index)
        return "compiled" if work >= _WORTH_COMPILING else "captured"

    def _runner(self) -> Runner:
        device = self.setting.device
        way = self._way or ("captured" if device.type == "cuda" else "eager")
        return Runner(device, self.setting.training.precision, way)

    # ---- evaluation ----

    def _tests(self, turns: Sequence[Turn]) -> dict[int, Plan]:
        return {slot: Plan(self.settings[t.run].members[t.client].test[None], None) for slot, t in enumerate(turns)}

    def _judge(self, slots: Slots, modes: Sequence[str]) -> Judge:
        for known_slots, known_modes, judge in self._judges:
            if known_slots is slots and known_modes == tuple(modes):
                return judge
        longest = max(len(member.test) for setting in self.settings for member in setting.members.values())
        B = min(EVALUATION_BATCH, longest)
        schedule = BatchFeed(-(-longest // B), slots.count, B, self.samples, Augmentation())
        runner = self._runner()
        if runner.way == "compiled":  # evaluation has too few steps for compiling to pay off
            runner = replace(runner, way="captured")
        judge = Judge(slots, self.setting.method, modes, schedule, runner)
        self._judges.append((slots, tuple(modes), judge))
        return judge


def _kind(phase: Phase) -> Any:
    """A key that phases of the same program share; rates are data, and so are options that some clients do not use."""
    flags = (phase.momentum > 0, phase.weight_decay > 0, phase.clip is not None)
    return (phase.loss, tuple(phase.lr), phase.epochs, phase.subset, phase.augment, dict(phase.bounds), flags)


def _next_phase(left: Sequence[Sequence[Phase]]) -> Phase:
    """A phase that is next for some client and later for none, so that it can run once for all."""
    for phases in left:
        if not any(_kind(phases[0]) == _kind(later) for others in left for later in others[1:]):
            return phases[0]
    return left[0][0]


def _finite(slots: Slots) -> Tensor:
    """Whether each client's weights are finite; buffers are not checked, as they may be masks."""
    learned = {*slots.packs, *(name for name, _ in slots.family.net.named_parameters())}
    tensors = [leaf for name, leaf in slots.leaves.items() if name in learned]
    # A sum with a non-finite term is not finite; one of finite terms does not overflow in 64 bits.
    sums_K = torch.stack([tensor.reshape(slots.count, -1).sum(dim=1, dtype=torch.float64) for tensor in tensors]).sum(dim=0)
    return torch.isfinite(sums_K).double()


def _fetched(counts: Mapping[tuple[int, int], Mapping[str, Mapping[str, Tensor]]]) -> dict[tuple[int, int], CorrectCounts]:
    """The counts as plain numbers, with a single wait for the device."""
    flat = [count for views in counts.values() for modes in views.values() for count in modes.values()]
    values = iter(torch.stack(flat).tolist() if flat else [])
    return {
        key: {view: {mode: next(values) for mode in modes} for view, modes in views.items()} for key, views in counts.items()
    }

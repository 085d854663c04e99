"""What is the batched engine's own: padding that stays zero, what cannot be stacked, what does not fit, several seeds."""

import math
from dataclasses import replace

import pytest
import torch
from contract import EngineContract
from tiny import ALL_METHODS, tiny_recipe
from torch import nn

import fedmrl
from fedmrl import OwnModel
from fedmrl.data.plan import plan
from fedmrl.engines import BatchedEngine, ReferenceEngine, Turn, batched
from fedmrl.engines.families import families
from fedmrl.federation.launch import run_seeds
from fedmrl.federation.setup import prepare, schedule
from fedmrl.federation.simulated import SimulatedClients
from fedmrl.federation.simulation import Simulation
from fedmrl.messages import copy
from fedmrl.methods import METHODS, Round

CPU = torch.device("cpu")
SLOWER = "is run one client at a time, which is slower and gives the same numbers"


class TestBatchedEngine(EngineContract):
    engine = BatchedEngine
    exact = False


def turns(setting, clients, earlier=0):
    return [Turn(k, copy(setting.fresh_net(k).state_dict()), None, earlier) for k in clients]


@pytest.mark.parametrize("method", ["fedmrl", "fedkd"])
def test_the_five_cnns_padding_is_exactly_zero_after_thirty_steps(method):
    settings = {"training__momentum": 0.9, "training__weight_decay": 0.01, "training__clip": 1.0, "training__precision": "fp32"}
    recipe = tiny_recipe(
        method,
        clients=5,
        models__local="heterogeneous",
        partition__kind="iid",
        training__epochs=8,
        training__batch_size=4,
        **({"method__d1": 100} if method == "fedmrl" else {}),
        **settings,
    )
    setting = prepare(recipe, CPU)
    engine = BatchedEngine(setting)
    states = turns(setting, range(5))
    outcomes = engine.train(Round(0, 3), states)
    steps = 8 * min(-(-len(split.train) // 4) for split in setting.members.values())
    assert steps >= 30
    slots = next(iter(engine._slots.values()))[0]
    padded = 0
    for k, outcome in enumerate(outcomes):
        assert outcome.broken is None
        for name, tensor in outcome.state.items():
            outside = slots.tensors[name][k].clone()
            outside[tuple(slice(0, length) for length in tensor.shape)] = 0
            assert not outside.any(), name
            padded += outside.numel() - tensor.numel()
    assert padded > 1_000_000  # CNN-5's in CNN-1's place, and there is something to look at
    assert all(
        not torch.equal(o.state["local.extractor.fc1.weight"], t.state["local.extractor.fc1.weight"])
        for o, t in zip(outcomes, states, strict=True)
    )


def stackable():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.Tanh(), nn.Linear(8, 4))


def otherwise():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.ReLU(), nn.Linear(8, 4))


def normalised():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def dropping():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


MIXED = [
    OwnModel("tanh", stackable, "3"),
    OwnModel("relu", otherwise, "3"),
    OwnModel("norm", normalised, "4"),
    OwnModel("drop", dropping, "4"),
]


def test_models_of_other_structures_are_grouped_and_what_cannot_be_stacked_is_named_with_its_layer():
    setting = prepare(tiny_recipe("standalone", training__batch_size=6), CPU, MIXED)
    found, loners = families(setting)
    assert [[spec.label for spec in family.specs] for family in found] == [["tanh"], ["relu"]]  # same names, other function
    engine = BatchedEngine(setting)
    assert sorted(engine.notices, reverse=True) == [
        f"norm {SLOWER}: its layer 2 (BatchNorm1d) normalises over the batch",
        f"drop {SLOWER}: its layer 3 (Dropout) draws random numbers",
    ]
    assert len(loners) == 2


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_mix_of_stacks_and_loners_gives_what_the_reference_engine_gives(method):
    apart = {"method__adaptability": 0.2} if method == "fedapen" else {}  # more than one sample, for the batch norm
    recipe = tiny_recipe(method, training__batch_size=6, participation=1.0, **apart)
    ends = []
    for engine in ("batched", "reference"):
        federation = Simulation(recipe, prepare(recipe, CPU, MIXED), engine)
        federation.run(lambda _: None)
        ends.append(federation.states())
    for client, state in ends[0].items():
        for name, tensor in state.items():
            assert torch.allclose(tensor.double(), ends[1][client][name].double(), rtol=1e-9, atol=1e-9), name


def test_a_frozen_parameter_and_one_that_no_loss_depends_on_stay_as_they_are():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.unused, self.last = nn.Linear(256, 8), nn.Linear(3, 3), nn.Linear(8, 4)
            self.body.bias.requires_grad_(False)

        def forward(self, x):
            return self.last(torch.relu(self.body(x.flatten(1))))

    recipe = tiny_recipe("standalone", training__weight_decay=0.1)
    setting = prepare(recipe, CPU, [OwnModel("odd", Odd, "last")] * 4)
    given = turns(setting, [0, 1])
    one, two = (engine(setting).train(Round(0, 3), given) for engine in (BatchedEngine, ReferenceEngine))
    for turn, mine, theirs in zip(given, one, two, strict=True):
        for name, tensor in theirs.state.items():
            assert torch.allclose(mine.state[name], tensor, rtol=1e-12, atol=1e-14), name
        for name in ("local.extractor.body.bias", "local.extractor.unused.weight"):
            assert torch.equal(mine.state[name], turn.state[name])


def test_a_cohort_that_does_not_fit_is_cut_into_equal_chunks(monkeypatch):
    setting = prepare(tiny_recipe("fedmrl", clients=5, participation=1.0), CPU)
    whole = BatchedEngine(setting).train(Round(0, 3), turns(setting, range(5)))
    engine = BatchedEngine(setting)
    family = next(iter(engine._family_of.values()))
    each = family.bytes_of_client + setting.training.batch_size * family.bytes_of_sample
    monkeypatch.setattr("fedmrl.engines.batched.free_bytes", lambda _: int(4.5 * each))
    cut = engine.train(Round(0, 3), turns(setting, range(5)))
    assert next(iter(engine._slots.values()))[0].count == 3
    for one, two in zip(whole, cut, strict=True):
        assert all(torch.allclose(one.state[name], two.state[name], rtol=1e-12, atol=1e-14) for name in one.state)


def test_a_later_round_with_more_clients_makes_room_for_them(tmp_path):
    rounds = tmp_path / "rounds.json"
    rounds.write_text("[[1], [0, 1, 2, 3], [2]]")
    recipe = tiny_recipe("fedmrl", participation=str(rounds))
    ends = []
    for engine in ("batched", "reference"):
        federation = Simulation(recipe, prepare(recipe, CPU), engine)
        federation.run(lambda _: None)
        ends.append(federation.states())
    for name, tensor in ends[0][2].items():
        assert torch.allclose(tensor, ends[1][2][name], rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize("engine", ["batched", "reference"])
@pytest.mark.parametrize("method", ["fedmrl", "fedproto", "fedapen"])
def test_seeds_run_as_one_give_the_numbers_each_gives_alone(method, engine):
    recipe = tiny_recipe(method)
    fused = run_seeds(recipe, [0, 3, 5], engine=engine)
    for seed, run in zip([0, 3, 5], fused, strict=True):
        alone = fedmrl.run(recipe.model_copy(update={"seed": seed}), engine=engine)
        assert run.seed == seed
        assert run.accuracy == alone.accuracy
        assert [r.loss for r in run.records] == pytest.approx([r.loss for r in alone.records], rel=1e-12)
        assert [r.participants for r in run.records] == [r.participants for r in alone.records]


def test_a_seed_that_diverges_leaves_the_others_alone(tmp_path):
    recipe = tiny_recipe("standalone", rounds=4)
    federations = [tmp_path / str(seed) for seed in (0, 1)]
    real = BatchedEngine.train

    def breaking(self, round_, turns, then=()):
        together = zip(turns, real(self, round_, turns, then), strict=True)
        lost = torch.tensor([math.nan, 1.0])
        return [replace(o, told=lost) if t.run == 1 and round_.index == 2 else o for t, o in together]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchedEngine, "train", breaking)
        one, two = run_seeds(recipe, [0, 1], outs=federations, engine="batched")
    assert one.status == "finished"
    assert isinstance(two, fedmrl.DivergedRun)
    assert '"status": "diverged"' in (federations[1] / "summary.json").read_text()
    assert one.accuracy == fedmrl.run(recipe, engine="batched").accuracy


@pytest.fixture
def running_ahead(monkeypatch):
    """As on a GPU, where a round waits for the device only at its end."""
    real = BatchedEngine.__init__

    def ahead(self, *settings, **options):
        real(self, *settings, **options)
        self.runs_ahead = True

    monkeypatch.setattr(BatchedEngine, "__init__", ahead)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_a_run_that_diverges_is_told_by_an_engine_that_runs_ahead(method, tmp_path, running_ahead):
    recipe = tiny_recipe(method, training__lr=1e30, training__precision="fp32")
    with pytest.raises(fedmrl.DivergedError, match="became NaN or infinite in round 1"):
        fedmrl.run(recipe, engine="batched", out=tmp_path / "run")
    assert not (tmp_path / "run" / "rounds.jsonl").read_text()


@pytest.mark.parametrize("method", ["fedmrl", "fedkd", "fedproto"])
def test_a_seed_that_diverges_leaves_the_others_alone_when_running_ahead(method, running_ahead, monkeypatch):
    recipe = tiny_recipe(method, rounds=3)
    alone = fedmrl.run(recipe, engine="batched")
    real = SimulatedClients.state

    def state(self, client, state=None, run=0):
        found = real(self, client, state, run)
        if run == 1 and state is not None:  # it has trained once
            found = {name: torch.full_like(tensor, math.nan) if "local" in name else tensor for name, tensor in found.items()}
        return found

    monkeypatch.setattr(SimulatedClients, "state", state)
    one, two = run_seeds(recipe, [0, 1], engine="batched")
    assert isinstance(two, fedmrl.DivergedRun)
    assert one.accuracy == alone.accuracy


def test_plans_are_made_ahead_for_the_next_round_and_used(monkeypatch):
    made, now = [], []
    real = BatchedEngine.trained

    def noted(seed, index, client, own, phase):
        made.append((now[-1], index, client))
        return plan(seed, index, client, own, phase)

    def trained(self, round_, turns, then=()):
        now.append(round_.index)
        return real(self, round_, turns, then)

    monkeypatch.setattr(batched, "plan", noted)
    monkeypatch.setattr(BatchedEngine, "trained", trained)
    recipe = tiny_recipe("fedmrl", rounds=3)
    fedmrl.run(recipe, engine="batched")
    asked = [(max(0, index - 1), index, client) for index, clients in enumerate(schedule(recipe)) for client in clients]
    assert sorted(made) == sorted(asked)


def tied():
    one, two = nn.Linear(256, 256), nn.Linear(256, 256)
    two.weight = one.weight
    return nn.Sequential(nn.Flatten(), one, nn.ReLU(), two, nn.ReLU(), nn.Linear(256, 4))


def used_twice():
    act = nn.PReLU()
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 4))


def shared_relu():
    relu = nn.ReLU()
    return nn.Sequential(nn.Conv2d(1, 2, 5), relu, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 8), relu, nn.Linear(8, 4))


class Masked(nn.Module):
    """A model with a mask of its own, which is none of a method's business."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(256, 8), nn.Linear(8, 4)
        self.register_buffer("mask", torch.tensor([True, False] * 4))

    def forward(self, x):
        return self.last(self.body(x.flatten(1)).masked_fill(self.mask, -torch.inf).softmax(dim=-1))


@pytest.mark.parametrize(
    ("build", "cut", "reason"),
    [
        (tied, "5", "its layer 3 (Linear) shares its tensors with another layer"),
        (used_twice, "5", "its layer 4 (PReLU) shares its tensors with another layer"),
        (shared_relu, "6", None),
        (Masked, "last", None),
    ],
)
def test_layers_and_tensors_in_two_places_and_own_buffers_give_what_the_reference_engine_gives(build, cut, reason):
    recipe = tiny_recipe("standalone", participation=1.0, rounds=2)
    models = [OwnModel("odd", build, cut)] * 4
    setting = prepare(recipe, CPU, models)
    assert [loner.reason for loner in families(setting)[1]] == ([reason] if reason else [])
    ends = []
    for engine in ("batched", "reference"):
        federation = Simulation(recipe, prepare(recipe, CPU, models), engine)
        federation.run(lambda _: None)
        ends.append(federation.states())
    for client, state in ends[0].items():
        for name, tensor in state.items():
            assert torch.allclose(tensor, ends[1][client][name], rtol=1e-9, atol=1e-9), name


def test_a_phase_may_last_longer_for_some_clients_than_for_others(monkeypatch):
    """Epochs that grow with each turn: what was made for few is not used for many."""
    real = METHODS["standalone"].phases
    monkeypatch.setattr(
        METHODS["standalone"], "phases", lambda self, t, earlier: (replace(real(self, t, earlier)[0], epochs=1 + 2 * earlier),)
    )
    setting = prepare(tiny_recipe("standalone"), CPU)
    both = [
        [Turn(0, copy(setting.fresh_net(0).state_dict()), None, 0), Turn(2, copy(setting.fresh_net(2).state_dict()), None, 2)],
        [Turn(0, copy(setting.fresh_net(0).state_dict()), None, 3)],
    ]
    engines = BatchedEngine(setting), ReferenceEngine(setting)
    for index, asked in enumerate(both):
        for one, two in zip(*(engine.train(Round(index, 3), asked) for engine in engines), strict=True):
            assert one.loss == pytest.approx(two.loss, rel=1e-9)
            assert all(torch.allclose(one.state[name], two.state[name], rtol=1e-9, atol=1e-9) for name in one.state)


def test_a_model_is_judged_as_it_is_when_it_does_not_train():
    class Loud(nn.Module):
        """Does something else in training."""

        def __init__(self):
            super().__init__()
            self.body, self.last = nn.Linear(256, 8), nn.Linear(8, 4)

        def forward(self, x):
            rep = self.body(x.flatten(1))
            return self.last(rep * 0 if self.training else rep)

    modes = []
    real = batched.Judge.__init__

    def noted(self, slots, *rest):
        slots.family.net.train()
        real(self, slots, *rest)
        modes.append(slots.family.net.training)

    setting = prepare(tiny_recipe("standalone"), CPU, [OwnModel("loud", Loud, "last")] * 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched.Judge, "__init__", noted)
        BatchedEngine(setting).evaluate(turns(setting, [0]), ["local"])
    assert modes == [False]


def test_a_step_that_cannot_be_compiled_is_run_as_it_is_and_that_is_said(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", fails)
    setting = prepare(tiny_recipe("standalone"), CPU)
    engine, lines = BatchedEngine(setting, way="compiled"), []
    engine.tell = lines.append
    (outcome,) = engine.train(Round(0, 3), turns(setting, [0]))
    (expected,) = ReferenceEngine(setting).train(Round(0, 3), turns(setting, [0]))
    assert outcome.loss == pytest.approx(expected.loss, rel=1e-9)
    assert lines == ["a step cannot be compiled here (no compiler here); it runs uncompiled, which is slower"]


def test_a_cohort_that_is_cut_is_said(monkeypatch):
    setting = prepare(tiny_recipe("standalone", participation=1.0), CPU)
    engine, lines = BatchedEngine(setting), []
    engine.tell = lines.append
    (family,) = {id(f): f for f in engine._family_of.values()}.values()
    each = family.bytes_of_client + setting.training.batch_size * family.bytes_of_sample
    monkeypatch.setattr(batched, "free_bytes", lambda _: 2.5 * each)
    engine.train(Round(0, 3), turns(setting, [0, 1, 2, 3]))
    assert lines == ["2 of 4 clients are trained at once, as more do not fit into memory"]

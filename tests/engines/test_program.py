"""Steps that are traced for a compiler do what the same steps do as Python calls."""

from dataclasses import replace

import pytest
import torch
from tiny import ALL_METHODS, tiny_recipe

from fedmrl.engines import BatchedEngine, Turn, stack
from fedmrl.engines.families import families
from fedmrl.engines.program import _stretches
from fedmrl.engines.stack import Slots
from fedmrl.federation.setup import prepare
from fedmrl.messages import copy
from fedmrl.methods import Round

CPU = torch.device("cpu")


@pytest.fixture
def traced(monkeypatch):
    """What would be compiled is run as it was traced: to compile it takes a compiler, and minutes. Counts the programs."""
    programs = []

    def kept(graph, **options):
        programs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", kept)
    return programs


def trained(setting, way, rounds=2):
    """Each client's state and loss, after each round."""
    engine, server = BatchedEngine(setting, way=way), setting.server_start()
    states = {k: copy(setting.fresh_net(k).state_dict()) for k in (0, 2, 3)}
    found = []
    for index in range(rounds):
        turns = [Turn(k, states[k], setting.method.answer(server, k, None), earlier=index) for k in states]
        outcomes = engine.train(Round(index, rounds), turns)
        states = {outcome.client: outcome.state for outcome in outcomes}
        found += [(dict(outcome.state), outcome.loss) for outcome in outcomes]
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ALL_METHODS)
def test_traced_steps_give_the_same_numbers(method, precision, traced):
    optimiser = {"training__momentum": 0.9, "training__weight_decay": 0.01, "training__clip": 1.0}
    setting = prepare(tiny_recipe(method, training__precision=precision, training__augment__crop=2, **optimiser), CPU)
    for (one, one_loss), (two, two_loss) in zip(trained(setting, "eager"), trained(setting, "compiled"), strict=True):
        assert one_loss == pytest.approx(two_loss, rel=1e-6)
        for name in one:
            assert torch.allclose(one[name], two[name], rtol=1e-5, atol=1e-7), name
    assert traced


# By itself each: in each model two convolutions' filters, three linear layers' weights and biases; and the projector's.
@pytest.mark.parametrize(("small", "expected"), [(0, 18), (65_536, 3)], ids=["each-by-itself", "in-packs"])
def test_rounded_weights_are_kept_and_not_made_anew_in_each_step(small, expected, traced, monkeypatch):
    monkeypatch.setattr(stack, "_SMALL", small)
    setting = prepare(tiny_recipe("fedmrl", training__precision="bf16"), CPU)
    trained(setting, "compiled")
    step = max(traced, key=lambda graph: len(graph.graph.nodes))
    inputs = [node for node in step.graph.nodes if node.op == "placeholder"]
    rounded = [node for node in inputs if node.name.startswith("rounded")]
    assert len(rounded) == expected
    writes = [node for node in step.graph.nodes if node.target is torch.ops.aten.copy_.default]
    learned = {write.args[0]: write.args[1] for write in writes}
    assert all(copy in learned for copy in rounded)
    for weight in set(learned) - set(rounded):
        casts = [user for user in weight.users if user.target is torch.ops.aten._to_copy.default]
        assert not [cast for cast in casts if dict(cast.kwargs) == {"dtype": torch.bfloat16}], weight


def slots_and_phase(**changes):
    """Room for two clients of FedMRL, and the phase in which they learn."""
    setting = prepare(tiny_recipe("fedmrl", training__precision="fp64"), CPU)
    phase = setting.method.phases(setting.training, 0)[0]
    slots = Slots(families(setting)[0][0], 2)
    return slots, replace(phase, **changes)


def test_what_a_loss_leaves_alone_is_left_out_of_an_update():
    slots, phase = slots_and_phase()
    names = [name for name, _ in slots.family.net.named_parameters()]
    left_out = next(name for name in names if name.startswith("local.") and name.endswith("weight") and names.index(name) > 0)
    stretches = list(_stretches(slots, phase, [name for name in names if name != left_out]))
    assert sorted(name for stretch in stretches for name in stretch.members) == sorted(set(names) - {left_out})
    pack = next(pack for pack in slots.packs.values() if left_out in pack.shapes)
    start = pack.starts[left_out]
    covered = [stretch.columns for stretch in stretches if stretch.columns is not None]
    assert covered
    assert not [columns for columns in covered if columns[0] <= start < columns[1]]


def test_what_has_bounds_is_updated_by_itself():
    slots, _ = slots_and_phase()
    bounded = next(name for name in slots.packs[next(iter(slots.packs))].shapes)
    slots, phase = slots_and_phase(bounds={bounded: (0.0, 1.0)})
    names = [name for name, _ in slots.family.net.named_parameters()]
    (alone,) = [stretch for stretch in _stretches(slots, phase, names) if stretch.bounds]
    assert alone.members == (bounded,)


def test_a_pack_holds_what_its_views_are_given():
    slots, phase = slots_and_phase()
    names = [name for name, _ in slots.family.net.named_parameters()]
    given = {name: torch.randn(slots.tensors[name].shape, dtype=torch.float64) for name in names}
    for name, value in given.items():
        slots.tensors[name].copy_(value)
    assert all(torch.equal(view, given[name]) for name, view in slots.unpacked(slots.leaves).items() if name in given)
    for stretch in _stretches(slots, phase, names):
        assert torch.equal(stretch.gradient(given), stretch.of(slots.leaves))
    slots.clear()
    assert not any(leaf.any() for leaf in slots.leaves.values())

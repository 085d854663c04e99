"""Steps that are traced for a compiler do what the same steps do as Python calls."""

import pytest
import torch
from tiny import ALL_METHODS, tiny_recipe

from fedmrl.engines import BatchedEngine, Turn
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
    engine, server = BatchedEngine(setting, way=way), setting.method.start(setting.fresh_net(None))
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


def test_rounded_weights_are_kept_and_not_made_anew_in_each_step(traced):
    setting = prepare(tiny_recipe("fedmrl", training__precision="bf16"), CPU)
    trained(setting, "compiled")
    step = max(traced, key=lambda graph: len(graph.graph.nodes))
    inputs = [node for node in step.graph.nodes if node.op == "placeholder"]
    rounded = [node for node in inputs if node.name.startswith("rounded")]
    assert len(rounded) == 7  # the weights of linear layers: three in each model, and the projector
    writes = [node for node in step.graph.nodes if node.target is torch.ops.aten.copy_.default]
    learned = {write.args[0]: write.args[1] for write in writes}
    assert all(copy in learned for copy in rounded)
    for weight in set(learned) - set(rounded):
        casts = [user for user in weight.users if user.target is torch.ops.aten._to_copy.default]
        assert not [cast for cast in casts if dict(cast.kwargs) == {"dtype": torch.bfloat16}], weight

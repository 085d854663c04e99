"""On a GPU, where there is one: what is captured, compiled and run ahead gives what the reference engine gives there."""

import math

import pytest
import torch
from tiny import ALL_METHODS, tiny_recipe

import fedmrl
from fedmrl.engines import BatchedEngine, ReferenceEngine, Turn
from fedmrl.federation.launch import run_seeds
from fedmrl.federation.setup import prepare
from fedmrl.messages import copy
from fedmrl.methods import Round

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
CUDA = torch.device("cuda")
OPTIMISER = {"training__momentum": 0.9, "training__weight_decay": 0.01, "training__clip": 1.0, "training__augment__crop": 2}


def after_two_rounds(setting, engine):
    """Each client's state and loss, and how many test samples it gets right."""
    server = setting.server_start()
    states = {k: copy(setting.fresh_net(k).state_dict()) for k in (0, 2, 3)}
    losses = []
    for index in range(2):
        turns = [Turn(k, states[k], setting.method.answer(server, k, None), earlier=index) for k in states]
        outcomes = engine.train(Round(index, 2), turns)
        states = {outcome.client: outcome.state for outcome in outcomes}
        losses += [outcome.loss for outcome in outcomes]
    right = engine.evaluate([Turn(k, states[k], None) for k in states], setting.method.modes[:1])
    return states, losses, right


def distance(one, two, start):
    """In units of how far the weights went."""
    apart = sum(float((one[n].double() - two[n].double()).square().sum()) for n in two)
    return math.sqrt(apart / sum(float((two[n].double() - start[n].double()).square().sum()) for n in two))


@pytest.mark.parametrize("way", ["eager", "captured"])
@pytest.mark.parametrize("method", ALL_METHODS)
def test_the_batched_engine_gives_what_the_reference_engine_gives(method, way):
    setting = prepare(tiny_recipe(method, training__precision="fp32", **OPTIMISER), CUDA)
    one = after_two_rounds(setting, BatchedEngine(setting, way=way))
    two = after_two_rounds(setting, ReferenceEngine(setting))
    assert one[1] == pytest.approx(two[1], rel=1e-3)
    for client, state in one[0].items():
        assert distance(state, two[0][client], setting.fresh_net(client).state_dict()) < 5e-3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_step_gives_what_a_captured_one_gives(precision):
    setting = prepare(tiny_recipe("fedmrl", training__precision=precision, **OPTIMISER), CUDA)
    one = after_two_rounds(setting, BatchedEngine(setting, way="compiled"))
    two = after_two_rounds(setting, BatchedEngine(setting, way="captured"))
    allowed = 5e-3 if precision == "fp32" else 5e-2
    for client, state in one[0].items():
        assert distance(state, two[0][client], setting.fresh_net(client).state_dict()) < allowed


@pytest.mark.parametrize("method", ALL_METHODS)
def test_a_run_that_diverges_is_told(method, tmp_path):
    recipe = tiny_recipe(method, training__lr=1e30, training__precision="fp32")
    with pytest.raises(fedmrl.DivergedError, match="became NaN or infinite in round 1"):
        fedmrl.run(recipe, device="cuda", out=tmp_path / "run")


@pytest.mark.parametrize("store", ["device", "host", "disk"])
def test_every_store_gives_the_same_run(store):
    recipe = tiny_recipe("fedmrl", training__precision="fp32")
    expected = fedmrl.run(recipe, device="cuda").accuracy
    assert fedmrl.run(recipe, device="cuda", store=store).accuracy == expected


def test_seeds_run_as_one_come_close_to_each_alone():
    recipe = tiny_recipe("fedmrl", training__precision="fp32")
    for seed, run in zip([0, 3], run_seeds(recipe, [0, 3], device="cuda"), strict=True):
        alone = fedmrl.run(recipe.model_copy(update={"seed": seed}), device="cuda")
        assert [r.loss for r in run.records] == pytest.approx([r.loss for r in alone.records], rel=1e-3)

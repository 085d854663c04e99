import numpy as np
import pytest
import torch
from by_hand import HandModel, World, assert_step, ce, equal, kl, onehot, softmax

from fedmrl.errors import UserError
from fedmrl.methods import FedAPEN, Round


def models(state, x):
    local, small = HandModel(state, "local"), HandModel(state, "small")
    local.forward(x)
    small.forward(x)
    return local, small


def test_a_step_of_the_models_has_five_terms_and_leaves_the_balance_alone():
    world = World(FedAPEN())
    x, y = world.samples(1)
    assert len(y) == 6, "one of the seven samples is set apart"
    outcome = world.train(1)
    local, small = models(world.states[1], x)
    z = 0.5 * local.z + 0.5 * small.z
    p, q, e, n = softmax(local.z), softmax(small.z), softmax(z), len(y)
    gradients = local.gradients(dz=((p - onehot(y)) + (p - q) + 0.5 * (e - onehot(y))) / n)
    gradients |= small.gradients(dz=((q - onehot(y)) + (q - p) + 0.5 * (e - onehot(y))) / n)
    assert_step(outcome, world.states[1], gradients)
    np.testing.assert_allclose(outcome.loss, ce(local.z, y) + ce(small.z, y) + kl(p, q) + kl(q, p) + ce(z, y))


def test_later_rounds_first_learn_the_balance_on_the_set_apart_with_the_models_fixed():
    method = FedAPEN(balance_lr=0.5, balance_epochs=2)
    world = World(method)
    x, y = world.samples(1, "adaptability")
    assert len(y) == 1
    local, small = models(world.states[1], x)
    share = 0.5
    for _ in range(2):
        e = softmax(share * local.z + (1 - share) * small.z)
        share = np.clip(share - 0.5 * ((e - onehot(y)) * (local.z - small.z)).sum() / len(y), 0, 1)
    outcome = world.train(1, earlier=1)
    assert share != 0.5
    equal(outcome.state["balance.value"], share)
    fixed = World(method)
    state = {**fixed.states[1], "balance.value": torch.tensor(share)}
    for name, after in fixed.train(1, state).state.items():
        equal(outcome.state[name], after.numpy())


def test_the_balance_stays_between_0_and_1():
    world = World(FedAPEN(balance_lr=1e6))
    assert world.train(1, earlier=1).state["balance.value"].item() in (0.0, 1.0)


def test_an_ensemble_of_probabilities_mixes_probabilities():
    world = World(FedAPEN(ensemble="probabilities"))
    net = world.setting.fresh_net(0)
    x = world.setting.data.x[:3]
    local, small = models(net.state_dict(), x)
    scores = world.method.predict(net, torch.from_numpy(x), "ensemble").detach().numpy()
    np.testing.assert_allclose(softmax(scores), 0.5 * softmax(local.z) + 0.5 * softmax(small.z))


def test_modes_are_the_ensemble_and_its_two_models():
    world = World(FedAPEN())
    net = world.setting.fresh_net(0)
    x = world.setting.data.x[:3]
    local, small = models(net.state_dict(), x)
    for mode, expected in (("ensemble", 0.5 * local.z + 0.5 * small.z), ("local", local.z), ("small", small.z)):
        equal(world.method.predict(net, torch.from_numpy(x), mode).detach(), expected)


@pytest.mark.parametrize(("samples", "apart"), [(2, 1), (10, 1), (60, 3), (100, 5)])
def test_five_percent_and_at_least_one_sample_are_set_apart_and_not_trained_on(samples, apart):
    cut = FedAPEN().subsets(samples, np.random.default_rng(0))
    assert len(cut["adaptability"]) == apart
    assert sorted([*cut["adaptability"], *cut["train"]]) == list(range(samples))


def test_a_client_with_one_sample_is_refused():
    with pytest.raises(UserError, match="it needs 2 or more"):
        FedAPEN().subsets(1, np.random.default_rng(0))


def test_only_small_is_sent_and_it_is_averaged_by_samples():
    world = World(FedAPEN())
    uploads = [world.upload(k, world.train(k).upload) for k in (0, 1)]
    server = world.method.aggregate(world.server, uploads, Round(0, 1))
    a, b = (u.content["small.header.bias"].numpy() for u in uploads)
    equal(server["small.header.bias"], (5 * a + 7 * b) / 12)
    assert all(name.startswith("small.") for name in server)

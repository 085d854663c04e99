import numpy as np
import torch
from by_hand import LR, HandModel, World, assert_step, ce, onehot, softmax

from fedmrl.methods import Standalone


def gradient(model, x, y):
    _, z = model.forward(x)
    return model.gradients(dz=(softmax(z) - onehot(y)) / len(y))


def test_a_step_is_the_gradient_of_the_mean_cross_entropy():
    world = World(Standalone())
    x, y = world.samples(1)
    model = HandModel(world.states[1], "local")
    outcome = world.train(1)
    assert_step(outcome, world.states[1], gradient(model, x, y))
    np.testing.assert_allclose(outcome.loss, ce(model.z, y), rtol=1e-12)


def test_momentum_weight_decay_and_clipping_are_sgd_as_the_book_has_it():
    world = World(Standalone(), training={"epochs": 3, "momentum": 0.9, "weight_decay": 0.01, "clip": 0.1})
    x, y = world.samples(1)
    state = {name: tensor.clone() for name, tensor in world.states[1].items()}
    velocity = {}
    for _ in range(3):
        gradients = gradient(HandModel(state, "local"), x, y)
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        assert norm > 0.1, "the case must need clipping"
        for name, gradient_ in gradients.items():
            g = gradient_ * 0.1 / (norm + 1e-6) + 0.01 * state[name].numpy()
            velocity[name] = 0.9 * velocity[name] + g if name in velocity else g
            state[name] = torch.tensor(state[name].numpy() - LR * velocity[name])
    after = world.train(1).state
    for name, expected in state.items():
        np.testing.assert_allclose(after[name].numpy(), expected.numpy(), rtol=1e-9, atol=1e-12)


def test_nothing_is_sent_and_nothing_comes_back():
    world = World(Standalone())
    assert world.train(0).upload == {}
    assert world.server == {} and world.method.answer({}, 0, None) == {}

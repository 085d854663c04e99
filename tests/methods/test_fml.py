import numpy as np
from by_hand import HandModel, World, assert_step, ce, equal, kl, onehot, softmax

from fedmrl.methods import FML, Round


def test_a_step_is_mutual_learning_with_each_others_outputs_fixed():
    world = World(FML(alpha=0.3, beta=0.6))
    x, y = world.samples(1)
    outcome = world.train(1)
    local, small = HandModel(world.states[1], "local"), HandModel(world.states[1], "small")
    (_, zl), (_, zs) = local.forward(x), small.forward(x)
    p, q, n = softmax(zl), softmax(zs), len(y)
    gradients = local.gradients(dz=(0.3 * (p - onehot(y)) + 0.7 * (p - q)) / n)
    gradients |= small.gradients(dz=(0.6 * (q - onehot(y)) + 0.4 * (q - p)) / n)
    assert_step(outcome, world.states[1], gradients)
    np.testing.assert_allclose(outcome.loss, 0.3 * ce(zl, y) + 0.7 * kl(q, p) + 0.6 * ce(zs, y) + 0.4 * kl(p, q))


def test_small_is_averaged_by_samples_or_uniformly():
    for weighting, weights in (("samples", (5, 7)), ("uniform", (1, 1))):
        world = World(FML(weighting=weighting))
        uploads = [world.upload(k, world.train(k).upload) for k in (0, 1)]
        server = world.method.aggregate(world.server, uploads, Round(0, 1))
        assert all(name.startswith("small.") for name in server)
        a, b = (u.content["small.header.weight"].numpy() for u in uploads)
        equal(server["small.header.weight"], (weights[0] * a + weights[1] * b) / sum(weights))


def test_each_mode_asks_its_own_model():
    world = World(FML())
    net, x = world.setting.fresh_net(0), world.engine.samples.take(np.arange(3))[0]
    equal(world.method.predict(net, x, "local").detach(), HandModel(net.state_dict(), "local").forward(x.numpy())[1])
    equal(world.method.predict(net, x, "small").detach(), HandModel(net.state_dict(), "small").forward(x.numpy())[1])

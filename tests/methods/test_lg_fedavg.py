import pytest
from by_hand import HandModel, TinySpec, World, assert_step, equal, onehot, softmax

from fedmrl.errors import UserError
from fedmrl.methods import LGFedAvg, Round


def test_a_step_trains_extractor_and_header_together():
    world = World(LGFedAvg())
    x, y = world.samples(0)
    model = HandModel(world.states[0], "local")
    _, z = model.forward(x)
    outcome = world.train(0)
    assert_step(outcome, world.states[0], model.gradients(dz=(softmax(z) - onehot(y)) / len(y)))
    assert set(outcome.upload) == {"local.header.weight", "local.header.bias"}


def test_the_header_is_averaged_by_samples():
    world = World(LGFedAvg())
    uploads = [world.upload(k, world.train(k).upload) for k in (0, 1)]
    server = world.method.aggregate(world.server, uploads, Round(0, 1))
    bias = [u.content["local.header.bias"].numpy() for u in uploads]
    equal(server["local.header.bias"], (5 * bias[0] + 7 * bias[1]) / 12)


def test_the_received_header_replaces_the_clients_own_and_its_extractor_stays():
    world = World(LGFedAvg())
    net = world.setting.fresh_net(0)
    world.method.receive(net, world.method.answer(world.server, 0, None))
    equal(net.state_dict()["local.header.weight"], world.server["local.header.weight"].numpy())
    equal(net.state_dict()["local.extractor.0.weight"], world.states[0]["local.extractor.0.weight"].numpy())


def test_unlike_headers_are_refused_by_the_names_of_two_clients():
    models = [TinySpec(3).build(None, 3), TinySpec(3).build(None, 3), TinySpec(4).build(None, 3)]
    with pytest.raises(UserError, match=r"client 0 \(A\) has one of shape \[3, 3\] where client 2 \(B\) has \[3, 4\]"):
        LGFedAvg().check(models, ["A", "A", "B"])

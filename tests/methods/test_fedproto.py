import numpy as np
import pytest
import torch
from by_hand import HandModel, TinySpec, World, assert_step, ce, equal, onehot, softmax

from fedmrl.errors import UserError
from fedmrl.messages import Upload
from fedmrl.methods import FedProto, Round

PROTOTYPE = np.array([0.3, 0.1, 0.5])
RECEIVED = {"classes": torch.tensor([1]), "prototypes": torch.tensor(PROTOTYPE)[None]}


def with_prototypes(state):
    state = dict(state)
    state["prototypes_CD"] = torch.zeros(3, 3, dtype=torch.float64)
    state["prototypes_CD"][1] = torch.tensor(PROTOTYPE)
    state["known_C"] = torch.tensor([False, True, False])
    return state


def test_a_step_pulls_each_sample_to_the_prototype_of_its_class():
    world = World(FedProto(prototype_weight=0.5))
    x, y = world.samples(0)
    outcome = world.train(0, received=RECEIVED)
    model = HandModel(world.states[0], "local")
    r, z = model.forward(x)
    known = (y == 1)[:, None]
    dr = 0.5 * 2 * known * (r - PROTOTYPE) / 3 / len(y)
    dz = (softmax(z) - onehot(y)) / len(y)
    assert_step(outcome, with_prototypes(world.states[0]), model.gradients(dz, dr))
    np.testing.assert_allclose(outcome.loss, ce(z, y) + 0.5 * (known * (r - PROTOTYPE) ** 2).sum() / 3 / len(y))


def test_the_papers_distance_is_of_class_means():
    world = World(FedProto(prototype_weight=0.5, distance="class-mean"))
    x, y = world.samples(0)
    outcome = world.train(0, received=RECEIVED)
    model = HandModel(world.states[0], "local")
    r, z = model.forward(x)
    gap = r[y == 1].mean(axis=0) - PROTOTYPE
    dr = np.where((y == 1)[:, None], 0.5 * gap / np.linalg.norm(gap) / (y == 1).sum(), 0.0)
    dz = (softmax(z) - onehot(y)) / len(y)
    assert_step(outcome, with_prototypes(world.states[0]), model.gradients(dz, dr))
    np.testing.assert_allclose(outcome.loss, ce(z, y) + 0.5 * np.linalg.norm(gap))


def test_what_is_sent_is_the_mean_representation_over_the_last_epoch():
    world = World(FedProto(), training={"epochs": 2})
    x, y = world.samples(1)
    model = HandModel(world.states[1], "local")
    for epoch in range(2):
        r, z = model.forward(x)
        if epoch == 0:
            for name, g in model.gradients(dz=(softmax(z) - onehot(y)) / len(y)).items():
                dict(zip(model.names, (model.W, model.b, model.V, model.c), strict=True))[name][...] -= 0.1 * g
    upload = world.train(1, received={}).upload
    assert upload["classes"].tolist() == [0, 1, 2]
    assert upload["counts"].tolist() == [(y == label).sum() for label in range(3)]
    for label in range(3):
        equal(upload["prototypes"][label], r[y == label].mean(axis=0))


def upload(client, classes, prototypes, counts):
    content = {"classes": classes, "prototypes": prototypes, "counts": counts}
    return Upload(client, 9, {name: torch.tensor(value) for name, value in content.items()})


def uploads():
    return [upload(0, [0, 2], [[1.0], [5.0]], [1.0, 4.0]), upload(1, [0], [[4.0]], [2.0])]


def test_global_prototypes_weigh_by_counts():
    server = FedProto().aggregate({}, uploads(), Round(0, 2))
    answer = FedProto().answer(server, 0, 0)
    assert answer["classes"].tolist() == [0, 2]
    equal(answer["prototypes"], [[3.0], [5.0]])


def test_uniform_weighting_sends_no_counts_and_takes_the_plain_mean():
    plain = [Upload(u.client, u.samples, {k: v for k, v in u.content.items() if k != "counts"}) for u in uploads()]
    server = FedProto(weighting="uniform").aggregate({}, plain, Round(0, 2))
    equal(FedProto(weighting="uniform").answer(server, 0, 0)["prototypes"], [[2.5], [5.0]])
    assert "counts" not in World(FedProto(weighting="uniform")).train(0, received={}).upload


def test_the_nearest_prototype_is_sought_among_the_classes_the_client_has():
    world = World(FedProto())
    net = world.setting.fresh_net(0)  # it has classes 0 and 1
    prototypes = torch.tensor([[9.0, 9.0, 9.0], [50.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    world.method.receive(net, {"classes": torch.arange(3), "prototypes": prototypes})
    x = torch.zeros(1, 4, dtype=torch.float64)
    assert world.method.predict(net, x, "prototype").argmax().item() == 0, "class 2 is nearer, but not its own"


def test_without_prototypes_no_class_can_be_predicted():
    world = World(FedProto())
    scores = world.method.predict(world.setting.fresh_net(0), torch.zeros(1, 4, dtype=torch.float64), "prototype")
    assert (scores == -torch.inf).all()


def test_unlike_dimensions_are_refused_by_the_names_of_two_clients():
    models = [TinySpec(3).build(None, 3), TinySpec(4).build(None, 3)]
    with pytest.raises(UserError, match=r"client 0 \(A\) has 3 dimensions where client 1 \(B\) has 4"):
        FedProto().check(models, ["A", "B"])

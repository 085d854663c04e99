import numpy as np
import torch
from by_hand import HandModel, World, assert_step, ce, equal, onehot, softmax

from fedmrl.messages import Upload
from fedmrl.methods import FD, Round

TARGETS = {"classes": torch.tensor([1]), "outputs": torch.tensor([[0.2, 0.7, 0.1]], dtype=torch.float64)}


def test_a_step_adds_the_cross_entropy_to_the_targets_where_there_are_any():
    world = World(FD(gamma=0.5))
    x, y = world.samples(0)
    outcome = world.train(0, received=TARGETS)
    model = HandModel(world.states[0], "local")
    _, z = model.forward(x)
    p, target, known = softmax(z), np.array([0.2, 0.7, 0.1]), (y == 1)[:, None]
    dz = (p - onehot(y)) / len(y) + 0.5 * known * (p - target) / len(y)
    before = dict(world.states[0])
    before["targets_CC"] = torch.zeros(3, 3, dtype=torch.float64)
    before["targets_CC"][1] = TARGETS["outputs"][0]
    before["known_C"] = torch.tensor([False, True, False])
    assert_step(outcome, before, model.gradients(dz=dz))
    np.testing.assert_allclose(outcome.loss, ce(z, y) - 0.5 * (known * target * np.log(p)).sum() / len(y))


def test_the_first_round_has_no_term():
    world = World(FD(gamma=0.5))
    x, y = world.samples(0)
    model = HandModel(world.states[0], "local")
    _, z = model.forward(x)
    assert_step(world.train(0, received={}), world.states[0], model.gradients(dz=(softmax(z) - onehot(y)) / len(y)))


def test_what_is_sent_is_the_mean_softmax_of_each_class_over_all_steps_of_the_round():
    world = World(FD(), training={"epochs": 2})
    x, y = world.samples(0)
    model = HandModel(world.states[0], "local")
    outputs = []
    for _ in range(2):
        _, z = model.forward(x)
        outputs.append(softmax(z))
        for name, g in model.gradients(dz=(softmax(z) - onehot(y)) / len(y)).items():
            dict(zip(model.names, (model.W, model.b, model.V, model.c), strict=True))[name][...] -= 0.1 * g
    upload = world.train(0, received={}).upload
    assert upload["classes"].tolist() == [0, 1] and set(upload) == {"classes", "outputs"}
    for row, label in enumerate([0, 1]):
        equal(upload["outputs"][row], np.concatenate([o[y == label] for o in outputs]).mean(axis=0))


def upload(client, **outputs):
    labels = sorted(int(name[1:]) for name in outputs)
    rows = torch.tensor([outputs[f"c{label}"] for label in labels])
    return Upload(client, 10, {"classes": torch.tensor(labels), "outputs": rows})


def test_a_clients_target_is_the_plain_mean_over_the_others():
    server = FD().aggregate(
        {},
        [upload(0, c0=[1.0, 0.0], c1=[0.5, 0.5]), upload(1, c0=[0.0, 1.0]), upload(2, c0=[0.5, 0.5], c1=[0.0, 1.0])],
        Round(0, 2),
    )
    to_0 = FD().answer(server, 0, 0)
    assert to_0["classes"].tolist() == [0, 1]
    equal(to_0["outputs"], [[0.25, 0.75], [0.0, 1.0]])
    to_1 = FD().answer(server, 1, 0)
    assert to_1["classes"].tolist() == [0], "only the classes it has"
    equal(to_1["outputs"], [[0.75, 0.25]])
    to_new = FD().answer(server, 9, None)
    equal(to_new["outputs"], [[0.5, 0.5], [0.25, 0.75]])


def test_a_class_that_nobody_else_has_gives_no_target():
    server = FD().aggregate({}, [upload(0, c0=[1.0, 0.0]), upload(1, c1=[0.0, 1.0])], Round(0, 2))
    assert FD().answer(server, 0, 0) == {}


def test_targets_that_are_gone_are_forgotten():
    world = World(FD())
    after = world.train(0, received=TARGETS).state
    assert after["known_C"].any() and not world.train(0, after, received={}).state["known_C"].any()


def test_the_server_keeps_each_clients_latest_upload_or_the_last_rounds_only():
    first, second = [upload(0, c0=[1.0, 0.0]), upload(1, c0=[0.0, 1.0])], [upload(1, c0=[0.5, 0.5])]
    for keep, expected in (("latest", [[0.75, 0.25]]), ("round", [[0.5, 0.5]])):
        method = FD(keep=keep)
        server = method.aggregate(method.aggregate({}, first, Round(0, 2)), second, Round(1, 2))
        equal(method.answer(server, 2, None)["outputs"], expected)

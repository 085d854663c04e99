import numpy as np
import pytest
import torch
from by_hand import LR, HandModel, TinySpec, World, assert_step, ce, equal, onehot, softmax

from fedmrl.errors import UserError
from fedmrl.methods import FedMRL, Round


def fused(state, x):
    """Both models' representations, spliced and projected."""
    local = HandModel(state, "local")
    local.forward(x)
    a = x @ state["small.extractor.0.weight"].numpy().T + state["small.extractor.0.bias"].numpy()
    spliced = np.concatenate([np.maximum(a, 0), local.r], axis=1)
    P, b = state["projector.weight"].numpy(), state["projector.bias"].numpy()
    return local, a, spliced, P, spliced @ P.T + b


def extractor_gradients(x, a, dr):
    da = dr * (a > 0)
    return {"small.extractor.0.weight": da.T @ x, "small.extractor.0.bias": da.sum(axis=0)}


@pytest.mark.parametrize("client", [0, 1])
def test_a_step_moves_small_local_and_projector_by_the_sum_of_both_losses(client):
    world = World(FedMRL(d1=2, m_small=0.7, m_local=1.3), dims=(3, 5))
    x, y = world.samples(client)
    before = world.states[client]
    outcome = world.train(client)
    local, a, spliced, P, h = fused(before, x)
    S, s = before["small.header.weight"].numpy(), before["small.header.bias"].numpy()
    coarse, fine = h[:, :2] @ S.T + s, h @ local.V.T + local.c
    dc = 0.7 * (softmax(coarse) - onehot(y)) / len(y)
    df = 1.3 * (softmax(fine) - onehot(y)) / len(y)
    dh = df @ local.V
    dh[:, :2] += dc @ S
    dspliced = dh @ P
    gradients = {"projector.weight": dh.T @ spliced, "projector.bias": dh.sum(axis=0)}
    gradients |= {"small.header.weight": dc.T @ h[:, :2], "small.header.bias": dc.sum(axis=0)}
    gradients |= extractor_gradients(x, a, dspliced[:, :2])
    gradients |= local.gradients(dz=df, dr=dspliced[:, 2:], header_input=h)
    assert_step(outcome, before, gradients)
    np.testing.assert_allclose(outcome.loss, 0.7 * ce(coarse, y) + 1.3 * ce(fine, y))


def test_without_mrl_the_local_header_alone_learns_and_the_small_extractor_alone_travels():
    world = World(FedMRL(d1=2, mrl=False))
    x, y = world.samples(0)
    before = world.states[0]
    outcome = world.train(0)
    local, a, spliced, P, h = fused(before, x)
    df = (softmax(h @ local.V.T + local.c) - onehot(y)) / len(y)
    dspliced = df @ local.V @ P
    gradients = {"projector.weight": (df @ local.V).T @ spliced, "projector.bias": (df @ local.V).sum(axis=0)}
    gradients |= extractor_gradients(x, a, dspliced[:, :2])
    gradients |= local.gradients(dz=df, dr=dspliced[:, 2:], header_input=h)
    assert_step(outcome, before, gradients)
    assert set(outcome.upload) == {"small.extractor.0.weight", "small.extractor.0.bias"}


def test_a_shared_header_reads_the_coarse_representation_with_its_first_columns():
    world = World(FedMRL(d1=2, header="shared"))
    x, y = world.samples(0)
    before = world.states[0]
    outcome = world.train(0)
    local, a, spliced, P, h = fused(before, x)
    coarse, fine = h[:, :2] @ local.V[:, :2].T + local.c, h @ local.V.T + local.c
    dc, df = ((softmax(z) - onehot(y)) / len(y) for z in (coarse, fine))
    dh = df @ local.V
    dh[:, :2] += dc @ local.V[:, :2]
    dspliced = dh @ P
    gradients = {"projector.weight": dh.T @ spliced, "projector.bias": dh.sum(axis=0)}
    gradients |= extractor_gradients(x, a, dspliced[:, :2])
    gradients |= local.gradients(dz=df, dr=dspliced[:, 2:], header_input=h)
    gradients["local.header.weight"][:, :2] += dc.T @ h[:, :2]
    gradients["local.header.bias"] += dc.sum(axis=0)
    assert_step(outcome, before, gradients)
    assert set(outcome.upload) == {"small.extractor.0.weight", "small.extractor.0.bias"}


def test_an_mlp_projector_has_two_layers_with_a_relu_between():
    world = World(FedMRL(d1=2, projector="mlp"))
    net, x = world.setting.fresh_net(0), world.setting.data.x[:4]
    state = {name: t.numpy() for name, t in net.state_dict().items()}
    local = HandModel(net.state_dict(), "local")
    local.forward(x)
    small = np.maximum(x @ state["small.extractor.0.weight"].T + state["small.extractor.0.bias"], 0)
    hidden = np.maximum(np.concatenate([small, local.r], axis=1) @ state["projector.0.weight"].T + state["projector.0.bias"], 0)
    assert state["projector.0.weight"].shape == (3, 5) and state["projector.2.weight"].shape == (3, 3)
    expected = hidden @ state["projector.2.weight"].T + state["projector.2.bias"]
    equal(world.method.fuse(net, torch.from_numpy(x)).detach(), expected)


def test_three_learning_rates_scale_three_steps():
    plain, scaled = World(FedMRL(d1=2)), World(FedMRL(d1=2, lr_small=0.2, lr_local=0.05, lr_projector=0.3))
    before, one, two = plain.states[0], plain.train(0).state, scaled.train(0).state
    for part, rate in (("small", 0.2), ("local", 0.05), ("projector", 0.3)):
        for name in (n for n in before if n.startswith(part)):
            step = (one[name] - before[name]) * (rate / LR)
            equal(two[name] - before[name], step.numpy())


def test_the_small_model_is_averaged_by_samples():
    world = World(FedMRL(d1=2))
    uploads = [world.upload(k, world.train(k).upload) for k in (0, 1)]
    server = world.method.aggregate(world.server, uploads, Round(0, 1))
    for name, tensor in server.items():
        a, b = (u.content[name].numpy() for u in uploads)
        equal(tensor, (5 * a + 7 * b) / 12)


def test_the_four_inference_models():
    world = World(FedMRL(d1=2))
    net, x = world.setting.fresh_net(0), world.setting.data.x[:4]
    state = net.state_dict()
    local, a, _, _, h = fused(state, x)
    S, s = state["small.header.weight"].numpy(), state["small.header.bias"].numpy()
    expected = {
        "mix-large": h @ local.V.T + local.c,
        "mix-small": h[:, :2] @ S.T + s,
        "single-small": np.maximum(a, 0) @ S.T + s,
        "single-large": local.z,
    }
    assert set(expected) == set(world.method.modes)
    for mode, logits in expected.items():
        equal(world.method.predict(net, torch.from_numpy(x), mode).detach(), logits)


def test_mix_small_of_a_shared_header_is_its_first_columns():
    world = World(FedMRL(d1=2, header="shared"))
    net, x = world.setting.fresh_net(0), world.setting.data.x[:4]
    local, _, _, _, h = fused(net.state_dict(), x)
    equal(world.method.predict(net, torch.from_numpy(x), "mix-small").detach(), h[:, :2] @ local.V[:, :2].T + local.c)


def test_variants_have_the_modes_that_they_can_have():
    assert FedMRL(header="shared").modes == ("mix-large", "mix-small", "single-large")
    assert FedMRL(mrl=False).modes == ("mix-large", "single-large")


def test_a_projector_has_the_shape_of_its_own_client():
    world = World(FedMRL(d1=2), dims=(3, 5))
    assert world.states[0]["projector.weight"].shape == (3, 2 + 3)
    assert world.states[1]["projector.weight"].shape == (5, 2 + 5)


@pytest.mark.parametrize("d1", [1, 3])
def test_d1_may_be_anything_up_to_the_smallest_representation(d1):
    models = [TinySpec(3).build(None, 3), TinySpec(5).build(None, 3)]
    FedMRL(d1=d1).check(models, ["A", "B"])
    assert World(FedMRL(d1=d1), dims=(3, 5)).train(1).loss > 0


def test_d1_over_a_representation_is_refused_with_the_client_and_the_bound():
    models = [TinySpec(5).build(None, 3), TinySpec(3).build(None, 3)]
    with pytest.raises(UserError, match=r"method.d1 is 4, more than client 1's representation \(3, B\); choose 1 to 3"):
        FedMRL(d1=4).check(models, ["A", "B"])


def test_a_shared_header_without_mrl_is_refused():
    with pytest.raises(UserError, match="mrl is false"):
        FedMRL(mrl=False, header="shared")

import numpy as np
import pytest
import torch
from by_hand import HandModel, World, assert_step, ce, equal, kl, onehot, softmax

from fedmrl.messages import Upload, size
from fedmrl.methods import FedKD, Round
from fedmrl.methods.fedkd import factor, rebuild, singular_values


def test_a_step_is_mutual_distillation_of_outputs_and_representations():
    world = World(FedKD())
    x, y = world.samples(1)
    outcome = world.train(1, received=world.method.answer(world.server, 1, None))
    before = dict(world.states[1])
    for name, tensor in world.server.items():
        if name.startswith("small."):
            before[name] = before[name.replace("small", "before")] = tensor
    local, small, W = HandModel(before, "local"), HandModel(before, "small"), before["bridge.weight"].numpy()
    (rl, zl), (rs, zs) = local.forward(x), small.forward(x)
    p, q, n, D = softmax(zl), softmax(zs), len(y), 3
    gap = rl - rs @ W.T
    hard = ce(zl, y) + ce(zs, y)
    w = 1 / hard
    gradients = local.gradients(dz=((p - onehot(y)) + w * (p - q)) / n, dr=w * 2 * gap / D / n)
    gradients |= small.gradients(dz=((q - onehot(y)) + w * (q - p)) / n, dr=-w * 2 * gap @ W / D / n)
    gradients["bridge.weight"] = -w * 2 * gap.T @ rs / D / n
    assert_step(outcome, before, gradients)
    np.testing.assert_allclose(outcome.loss, hard + w * (kl(p, q) + kl(q, p) + (gap**2).mean()))


def test_the_upload_is_the_update_of_small():
    world = World(FedKD())
    received = world.method.answer(world.server, 1, None)
    outcome = world.train(1, received=received)
    update = rebuild(outcome.upload, {name: world.server[name] for name in received})
    equal(update["small.header.bias"], (outcome.state["small.header.bias"] - world.server["small.header.bias"]).numpy())
    assert not any(name.startswith(("local", "bridge", "before")) for name in outcome.upload)


def low_rank(rows, columns, values, seed=0):
    """A matrix with these singular values."""
    rng = np.random.default_rng(seed)
    u, _ = np.linalg.qr(rng.normal(size=(rows, rows)))
    v, _ = np.linalg.qr(rng.normal(size=(columns, columns)))
    return sum(s * np.outer(u[:, i], v[:, i]) for i, s in enumerate(values))


@pytest.mark.parametrize(("energy", "rank"), [(0.5, 1), (0.95, 2), (0.999, 3)])
def test_the_smallest_rank_that_keeps_more_than_the_energy_is_sent(energy, rank):
    # Energies: 9, 4, 0.25 of 13.25, so 0.68, 0.98 and 1 are kept.
    matrix = torch.tensor(low_rank(10, 12, [3.0, 2.0, 0.5]))
    content = factor({"w": matrix}, energy)
    assert content["w:u"].shape == (10, rank) and content["w:s"].shape == (rank,) and content["w:v"].shape == (rank, 12)
    u, s, v = np.linalg.svd(matrix.numpy(), full_matrices=False)
    equal(rebuild(content, {"w": matrix})["w"], (u[:, :rank] * s[:rank]) @ v[:rank])


def test_a_matrix_of_full_rank_goes_exactly_and_nothing_of_it_is_lost():
    matrix = torch.tensor(low_rank(3, 50, [1.0, 1.0, 1.0]))
    content = factor({"w": matrix}, 0.98)
    assert set(content) == {"w"}, "3·(3+50+1) is more than 3·50"
    equal(rebuild(content, {"w": matrix})["w"], matrix.numpy())


def test_a_convolution_is_factored_as_one_row_for_each_output_channel():
    kernel = torch.tensor(low_rank(8, 27, [2.0])).reshape(8, 3, 3, 3)
    content = factor({"conv": kernel}, 0.95)
    assert content["conv:u"].shape == (8, 1) and content["conv:v"].shape == (1, 27)
    equal(rebuild(content, {"conv": kernel})["conv"], kernel.numpy())


def test_biases_go_as_they_are_and_zero_matrices_do_not_go():
    content = factor({"b": torch.tensor([1.0, 2.0]), "w": torch.zeros(4, 4)}, 0.95)
    assert set(content) == {"b"}
    equal(rebuild(content, {"w": torch.zeros(4, 4)})["w"], np.zeros((4, 4)))


def test_the_energy_rises_from_095_to_098():
    assert FedKD().energy(Round(0, 3)) == pytest.approx(0.96)
    assert FedKD().energy(Round(2, 3)) == pytest.approx(0.98)


def server_with(shape=(10, 12)):
    return {"small.w": torch.zeros(shape, dtype=torch.float64), "answers-since": torch.tensor(0)}


def test_the_servers_small_moves_by_the_weighted_mean_as_clients_will_rebuild_it():
    a, b = low_rank(10, 12, [3.0]), low_rank(10, 12, [1.0], seed=1)
    uploads = [
        Upload(0, 10, factor({"small.w": torch.tensor(a)}, 0.95)),
        Upload(1, 30, factor({"small.w": torch.tensor(b)}, 0.95)),
    ]
    server = FedKD().aggregate(server_with(), uploads, Round(0, 1))
    u, s, v = np.linalg.svd((10 * a + 30 * b) / 40)
    rank = next(k for k in range(1, 11) if (s[:k] ** 2).sum() > 0.98 * (s**2).sum())
    equal(server["small.w"], (u[:, :rank] * s[:rank]) @ v[:rank])


def test_all_copies_stay_equal_and_who_missed_rounds_is_sent_what_is_less():
    world = World(FedKD())
    method, total = world.method, 6
    states, last = [dict(s) for s in world.states], [None, None]
    server = world.server
    for r, clients in enumerate([[0, 1], [0], [0], [1], [0, 1], [0]]):
        answers = {k: method.answer(server, k, last[k]) for k in clients}
        outcomes = [world.train(k, states[k], answers[k], round_=Round(r, total)) for k in clients]
        for o in outcomes:
            for name in world.server:
                if name.startswith("small."):
                    before = o.state[name.replace("small", "before", 1)]
                    assert torch.equal(before, server[name]), (r, o.client, name)
            states[o.client], last[o.client] = o.state, r
        for k in clients:
            whole = size({n: t for n, t in server.items() if n.startswith("small.")}).parameters
            assert size(answers[k]).parameters <= whole
        server = method.aggregate(server, [world.upload(o.client, o.upload) for o in outcomes], Round(r, total))


def test_a_new_client_is_sent_the_whole_small_and_one_that_missed_nothing_the_last_answer():
    update = torch.tensor(low_rank(10, 12, [3.0]))
    server = FedKD().aggregate(server_with(), [Upload(0, 1, factor({"small.w": update}, 0.95))], Round(0, 2))
    assert set(FedKD().answer(server, 5, None)) == {"small.w"}
    answer = FedKD().answer(server, 0, 0)
    assert set(answer) == {"answer/0/small.w:u", "answer/0/small.w:s", "answer/0/small.w:v"}
    assert size(answer).parameters == 10 + 1 + 12


def test_answers_that_nobody_would_be_sent_are_forgotten():
    server = server_with()
    for r in range(30):
        update = torch.tensor(low_rank(10, 12, [3.0], seed=r))
        server = FedKD().aggregate(server, [Upload(0, 1, factor({"small.w": update}, 0.95))], Round(r, 30))
    assert len([name for name in server if name.endswith(":s")]) == 6, "6 answers of 23 numbers pass the whole of 120"
    assert set(FedKD().answer(server, 0, 3)) == {"small.w"}


def test_factors_of_huge_numbers_are_finite():
    u, s, v = singular_values(torch.full((1, 3, 5), 1e200, dtype=torch.float64))
    assert torch.isfinite(s).all()
    assert torch.allclose((u * s[:, None]) @ v, torch.full((1, 3, 5), 1e200, dtype=torch.float64))

"""The round loop: the faults of the public implementations, and what is recorded."""

import json

import numpy as np
import pytest
import torch
from tiny import ALL_METHODS, CNNS, tiny_recipe
from torch import nn

import fedmrl
from fedmrl.engines import ReferenceEngine, Turn
from fedmrl.errors import DivergedError, UserError
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulation import Simulation
from fedmrl.messages import copy
from fedmrl.methods import METHODS, WeightSharing


def federation(method="fedmrl", **settings):
    recipe = tiny_recipe(method, **settings)
    return Simulation(recipe, prepare(recipe, torch.device("cpu")), "reference")


def rounds(fed, count):
    """The snapshots before the first round and after each."""
    snapshots = [fed.now]
    for _ in range(count):
        fed.now = fed.next_round()
        snapshots.append(fed.now)
    return snapshots


def given_rounds(tmp_path, *who):
    path = tmp_path / "who.json"
    path.write_text(json.dumps(who))
    return str(path)


def test_the_global_small_model_is_the_mean_of_all_participants_by_their_training_samples():
    # The authors' code would give the last participant's model; uniform weights would give the plain mean.
    fed = federation(participation=1.0, partition__kind="dirichlet", partition__alpha=1.0)
    after = rounds(fed, 1)[1]
    samples = [len(own.train) for own in fed.clients.setting().members.values()]
    assert len(set(samples)) > 1
    for name, tensor in after.server.items():
        expected = sum(n * fed.states(after)[k][name].numpy() for k, n in enumerate(samples)) / sum(samples)
        np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_what_a_client_holds_is_what_it_trained_the_last_time(method, monkeypatch, tmp_path):
    # The other public implementation throws the trained projector away each round.
    seen = []
    real = ReferenceEngine._train_one

    def spy(self, round_, turn):
        outcome = real(self, round_, turn)
        seen.append((turn, outcome))
        return outcome

    monkeypatch.setattr(ReferenceEngine, "_train_one", spy)
    fed = federation(method, participation=given_rounds(tmp_path, [0, 1], [2], [0]))
    rounds(fed, 3)
    (first_turn, first), (last_turn, _) = seen[0], seen[3]
    assert first_turn.client == last_turn.client == 0 and last_turn.earlier == 1
    assert all(torch.equal(last_turn.state[name], first.state[name]) for name in first.state)
    trained = [name for name in first.state if name.startswith(fed.method.parts)]
    assert any(name.startswith("projector") for name in trained) or method != "fedmrl"
    assert all(not torch.equal(first.state[name], first_turn.state[name]) for name in trained)


def test_the_projector_is_trained_on_in_the_next_round_from_where_it_was(tmp_path):
    fed = federation(participation=given_rounds(tmp_path, [0], [0], [1]))
    _, one, two, three = rounds(fed, 3)
    first, second, third = (fed.states(snapshot)[0]["projector.weight"] for snapshot in (one, two, three))
    assert not torch.equal(first, second)
    assert torch.equal(second, third)
    alone = federation(participation=given_rounds(tmp_path, [0], [0], [1]), training__lr=1e-12)
    _, kept, still, _ = rounds(alone, 3)
    before, after = (alone.states(snapshot)[0]["projector.weight"] for snapshot in (kept, still))
    assert torch.allclose(before, after, atol=1e-9)


def test_a_client_that_joins_late_starts_from_the_global_small_with_its_own_fresh_parts(monkeypatch, tmp_path):
    received = {}
    real = ReferenceEngine._train_phase

    def spy(self, net, phase, round_, turn):
        received[turn.client] = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        return real(self, net, phase, round_, turn)

    fed = federation(participation=given_rounds(tmp_path, [0], [0], [1]), evaluation__every=100)
    before = rounds(fed, 2)[-1]
    monkeypatch.setattr(ReferenceEngine, "_train_phase", spy)
    fed.next_round()
    fresh = fed.clients.setting().fresh_net(1).state_dict()
    for name, tensor in received[1].items():
        assert torch.equal(tensor, before.server[name] if name.startswith("small.") else fresh[name]), name
    assert received[1]["projector.weight"].shape == fresh["projector.weight"].shape


def test_rounds_leave_the_snapshot_before_them_as_it_was():
    fed = federation()
    first = rounds(fed, 1)[1]
    kept = {k: {n: t.clone() for n, t in s.items()} for k, s in fed.states(first).items()}
    rounds(fed, 2)
    assert all(torch.equal(fed.states(first)[k][n], t) for k, s in kept.items() for n, t in s.items())


def small_size(spec, fc2=None):
    """By hand: two convolutions of 5×5 on 1×16×16 leave one pixel."""
    conv1, conv2, fc1, fc2 = spec["conv1"], spec["conv2"], spec["fc1"], fc2 or spec["fc2"]
    extractor = conv1 * 26 + conv2 * (25 * conv1 + 1) + fc1 * (conv2 + 1) + fc2 * (fc1 + 1)
    return extractor, 4 * (fc2 + 1)


SMALLEST = CNNS[1]


@pytest.mark.parametrize(
    ("method", "settings", "up"),
    [
        ("standalone", {}, 0),
        ("lg-fedavg", {}, 4 * (6 + 1)),
        ("fd", {}, 2 * (4 + 1)),
        ("fedproto", {}, 2 * (6 + 1 + 1)),
        ("fml", {}, sum(small_size(SMALLEST))),
        ("fedapen", {}, sum(small_size(SMALLEST))),
        ("fedmrl", {}, sum(small_size(SMALLEST, fc2=3))),
        ("fedmrl", {"method__mrl": False}, small_size(SMALLEST, fc2=3)[0]),
        ("fedmrl", {"method__header": "shared"}, small_size(SMALLEST, fc2=3)[0]),
    ],
)
def test_communicated_parameters_are_those_counted_by_hand(method, settings, up):
    fed = federation(method, **settings)
    first, second = (snapshot.records[-1] for snapshot in rounds(fed, 2)[1:])
    assert first.up.parameters == second.up.parameters == 2 * up
    down = {"standalone": 0, "fd": 0, "fedproto": 0}.get(method, 2 * up)
    assert first.down.parameters == down
    if method not in ("fd", "fedproto"):  # their labels are whole numbers of eight bytes, all else is fp64 here too
        assert first.up.bytes == 8 * first.up.parameters


def test_fedproto_sends_down_every_prototype_there_is(tmp_path):
    fed = federation("fedproto", participation=given_rounds(tmp_path, [0, 1, 2, 3], [0], [0]))
    second = rounds(fed, 2)[-1].records[-1]
    assert second.down.parameters == 4 * (6 + 1)


def test_fd_sends_down_the_others_means_of_the_clients_classes(tmp_path):
    fed = federation("fd", participation=given_rounds(tmp_path, [0, 1, 2, 3], [0], [0]))
    second = rounds(fed, 2)[-1].records[-1]
    assert second.down.parameters == 2 * (4 + 1)


def test_fedkd_counts_the_factors_that_it_really_sends(tmp_path):
    fed = federation("fedkd", participation=given_rounds(tmp_path, [0], [0], [1]))
    one, two, three = (snapshot.records[-1] for snapshot in rounds(fed, 3)[1:])
    whole = sum(small_size(SMALLEST))
    assert one.down.parameters == whole, "the first small goes whole"
    assert two.down.parameters < whole and one.up.parameters < whole
    assert three.down.parameters == whole, "client 1 is new"


def test_in_the_papers_shapes_fedmrl_sends_cnn_5_with_its_representation_cut_to_d1():
    setting = prepare(fedmrl.load_recipe("quickstart", {"method.d1": 100}), torch.device("cpu"))
    content = setting.server_start()
    assert sum(t.numel() for t in content.values()) == 670_058 - (501 * 500 + 501 * 10) + (501 * 100 + 101 * 10)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_aggregated_is_recorded_where_the_server_is_heard_and_measures_the_servers_part(method):
    fed = federation(method, rounds=2)
    after = rounds(fed, 2)[-1]
    measured = fed.evaluate(range(4), after.last_round, after.server, fed.method.modes)
    assert set(measured) == ({"own", "aggregated"} if METHODS[method].hears_server else {"own"})
    for view in measured:
        for k in range(4):
            net = fed.clients.setting().fresh_net(k)
            net.load_state_dict(fed.clients.state(k, after.last_round.get(k)))
            if view == "aggregated":
                fed.method.receive(net, fed.method.answer(after.server, k, None))
            counted = fed.clients.engine.evaluate([Turn(k, copy(net.state_dict()), None)], fed.method.modes)[0]["own"]
            for mode, number in counted.items():
                assert measured[view][mode][k] == number / len(fed.clients.setting().members[k].test)


def test_accuracy_is_the_mean_over_clients_of_their_exact_accuracies():
    run = fedmrl.run(tiny_recipe("standalone"))
    rows = run.clients
    assert run.accuracy.all.own["local"].last == pytest.approx(np.mean([r.accuracy for r in rows]))
    for row in rows:
        assert row.accuracy * row.test_samples == pytest.approx(round(row.accuracy * row.test_samples))


def test_participants_are_measured_every_round_and_all_clients_now_and_then_and_at_the_end():
    run = fedmrl.run(tiny_recipe(rounds=5, evaluation__every=2))
    assert [r.accuracy.all is not None for r in run.records] == [False, True, False, True, True]
    assert all(r.accuracy.participants is not None and len(r.participants) == 2 for r in run.records)


def test_the_small_models_accuracy_is_recorded_beside_locals():
    for method in ("fml", "fedkd"):
        accuracy = fedmrl.run(tiny_recipe(method, rounds=1)).records[0].accuracy.participants.own
        assert set(accuracy) == {"local", "small"}


def test_the_summary_has_every_inference_mode_and_leaves_out_what_is_not_there():
    inference = fedmrl.run(tiny_recipe(rounds=1)).inference["aggregated"]
    assert set(inference) == {"mix-large", "mix-small", "single-small", "single-large"}
    inference = fedmrl.run(tiny_recipe(rounds=1, method__mrl=False)).inference["aggregated"]
    assert set(inference) == {"mix-large", "single-large"}


def test_another_mode_can_be_the_one_that_counts():
    run = fedmrl.run(tiny_recipe(evaluation__mode="mix-small", rounds=1))
    assert run.mode == "mix-small"
    assert set(run.records[0].accuracy.all.own) == {"mix-small", "mix-large"}


def test_clients_of_unlike_representations_and_models_of_ones_own():
    models = [
        fedmrl.OwnModel("mlp", lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 9), nn.ReLU(), nn.Linear(9, 4)), "3"),
        fedmrl.OwnModel("tanh", lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 5), nn.Tanh(), nn.Linear(5, 4)), "3"),
    ]
    run = fedmrl.run(tiny_recipe(models__small=SMALLEST), models=[models[k % 2] for k in range(4)])
    assert [row.model for row in run.clients] == ["mlp", "tanh", "mlp", "tanh"]


def test_more_models_than_clients_are_refused():
    with pytest.raises(UserError, match="models has 5 models for 4 clients; give at most one for each"):
        fedmrl.run(tiny_recipe(), models=[fedmrl.OwnModel("x", nn.Identity, "y")] * 5)


def test_divergence_is_told_by_client_and_round():
    with pytest.raises(DivergedError) as told:
        fedmrl.run(tiny_recipe("standalone", training__lr=1e30, training__precision="fp32"))
    assert f"client {told.value.client}'s" in str(told.value) and f"in round {told.value.round};" in str(told.value)


def test_a_given_schedule_is_followed(tmp_path):
    run = fedmrl.run(tiny_recipe("standalone", participation=given_rounds(tmp_path, [3, 1], [2], [0])))
    assert [r.participants for r in run.records] == [[1, 3], [2], [0]]


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ([[0], [1]], "for each of the 3 rounds; it holds 2"),
        ([[0], [4], [1]], "round 2's entry must list at least one client, each once, from 0 to 3"),
        ([[0], [], [1]], "round 2's entry"),
        ([[0], [1, 1], [1]], "round 2's entry"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(tmp_path, who, sentence):
    with pytest.raises(UserError) as refusal:
        fedmrl.run(tiny_recipe(participation=given_rounds(tmp_path, *who)))
    assert sentence in str(refusal.value)


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    one, two, other = (fedmrl.run(tiny_recipe(seed=seed)) for seed in (1, 1, 2))
    assert [r.loss for r in one.records] == [r.loss for r in two.records] != [r.loss for r in other.records]


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device here"):
        fedmrl.run(tiny_recipe(), device="cuda")


@pytest.mark.parametrize(("settings", "sentence"), [({"engine": "fast"}, "is 'fast'"), ({"device": "tpu"}, "is 'tpu'")])
def test_an_engine_or_device_that_there_is_not_is_refused_before_anything_is_written(tmp_path, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        fedmrl.run(tiny_recipe(), out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def mlp(inputs=256, hidden=9):
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 4))


def test_data_that_the_shared_model_cannot_read_is_refused_before_anything_is_written(tmp_path):
    np.savez(tmp_path / "v.npz", x=np.random.default_rng(0).normal(size=(40, 5)), y=np.arange(40) % 4)
    models = [fedmrl.OwnModel("mlp", mlp(inputs=5), "3")] * 4
    with pytest.raises(UserError, match="takes images"):
        recipe = tiny_recipe(data__file=str(tmp_path / "v.npz"), models__small="cnn-5")
        fedmrl.run(recipe, models=models, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    alone = fedmrl.run(tiny_recipe("standalone", data__file=str(tmp_path / "v.npz")), models=models)
    assert alone.status == "finished", "who shares no model can have any data"


def test_a_batch_of_one_is_refused_for_a_model_that_normalises_over_the_batch():
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    spec = fedmrl.OwnModel("norm", lambda: model, "4")
    with pytest.raises(UserError, match="its last batch has a single sample"):
        fedmrl.run(tiny_recipe("standalone", partition__kind="iid", training__batch_size=18), models=[spec] * 4)


def test_what_the_user_froze_stays_frozen():
    def half_frozen():
        model = mlp()()
        model[1].requires_grad_(False)
        return model

    recipe = tiny_recipe("fedmrl")
    setting = prepare(recipe, torch.device("cpu"), [fedmrl.OwnModel("half", half_frozen, "3")] * 4)
    fed = Simulation(recipe, setting, "reference")
    client = fed.who[0][0]
    before, after = fed.clients.state(client), fed.states(fed.next_round())[client]
    assert torch.equal(before["local.extractor.1.weight"], after["local.extractor.1.weight"])
    assert not torch.equal(before["local.header.weight"], after["local.header.weight"])


def test_the_servers_first_model_is_nobodys():
    setting = prepare(tiny_recipe("fml"), torch.device("cpu"))
    server, client = setting.server_start(), setting.fresh_net(0).state_dict()
    assert not any(torch.equal(server[name], client[name]) for name in server)


@pytest.mark.parametrize("method", [m for m in ALL_METHODS if issubclass(METHODS[m], WeightSharing)])
def test_the_servers_first_shared_part_does_not_depend_on_which_models_clients_have(method):
    # The small model is named: with `auto` it would be the smallest of these.
    starts = []
    for models in (CNNS, CNNS[::-1], CNNS[1:]):
        recipe = tiny_recipe(method, models__local=models, models__small=SMALLEST)
        starts.append(prepare(recipe, torch.device("cpu")).server_start())
    other = prepare(tiny_recipe(method, models__small=SMALLEST, seed=1), torch.device("cpu")).server_start()
    assert starts[0] and {"answers-since"} >= {name for name in starts[0] if torch.equal(starts[0][name], other[name])}
    for start in starts[1:]:
        assert start.keys() == starts[0].keys() and all(torch.equal(start[name], starts[0][name]) for name in start)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_the_server_starts_with_what_a_client_can_take_in(method):
    setting = prepare(tiny_recipe(method), torch.device("cpu"))
    for client in range(4):
        net = setting.fresh_net(client)
        setting.method.receive(net, setting.method.answer(setting.server_start(), client, None))


def test_a_run_remembers_that_its_models_came_from_python(tmp_path):
    small = [fedmrl.OwnModel("mlp", mlp(), "3")] * 4
    recipe = tiny_recipe("standalone", rounds=2)

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(fedmrl.InterruptedRun):
        fedmrl.run(recipe, out=tmp_path / "run", models=small, on_round=stop)
    with pytest.raises(UserError, match="models were given from Python"):
        fedmrl.run(fedmrl.load_recipe(tmp_path / "run"), out=tmp_path / "run", resume=True)
    other = [fedmrl.OwnModel("mlp", mlp(hidden=12), "3")] * 4
    with pytest.raises(UserError, match=r"does not fit its model \("):
        fedmrl.run(recipe, out=tmp_path / "run", models=other, resume=True)
    assert fedmrl.run(recipe, out=tmp_path / "run", models=small, resume=True).status == "finished"

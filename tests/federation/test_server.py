"""The server's side: replies that do not come, clients that join, engines given as objects."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from kinds_of_model import ConvText, MeanText, texts
from tiny import ALL_METHODS, CNNS, tiny_recipe

import fedmrl
from fedmrl.data import dataset_of
from fedmrl.engines import Batched, Reference, ReferenceEngine
from fedmrl.federation.clients import Clients, NoReply
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulated import SimulatedClients
from fedmrl.federation.simulation import Simulation
from fedmrl.methods import Round
from fedmrl.models import CNN, OwnModel

CPU = torch.device("cpu")


class Unreliable(SimulatedClients):
    """Simulated clients of whom some do not reply, by round."""

    def __init__(self, settings, silent):
        super().__init__(settings)
        self.silent = silent

    def train(self, round_, requests, upcoming=()):
        there = [request for request in requests if request.client not in self.silent.get(round_.index, ())]
        return super().train(round_, there, upcoming)


def given(tmp_path, *rounds):
    path = tmp_path / f"who-{len(list(tmp_path.iterdir()))}.json"
    path.write_text(json.dumps(rounds))
    return str(path)


def federation(recipe, silent=None):
    setting = prepare(recipe, CPU)
    fed = Simulation(recipe, setting)
    if silent is not None:
        fed.clients = Unreliable([setting], silent)
    return fed


def without_time(records):
    return [record.model_dump(exclude={"seconds", "asked", "down"}) for record in records]


@pytest.mark.parametrize("method", ALL_METHODS)
def test_a_round_goes_on_with_the_replies_that_come_as_if_the_others_had_not_been_asked(method, tmp_path):
    every = [[0, 1, 2, 3]] * 3
    whole = tiny_recipe(method, participation=given(tmp_path, *every))
    fewer = tiny_recipe(method, participation=given(tmp_path, [0, 2, 3], [0, 1, 2, 3], [1]))
    partly, meant = federation(whole, {0: [1], 2: [0, 2, 3]}), federation(fewer)
    one, other = partly.run(), meant.run()
    assert [record.asked for record in one.records] == every
    assert [record.participants for record in one.records] == [[0, 2, 3], [0, 1, 2, 3], [1]]
    assert without_time(one.records) == without_time(other.records)
    assert one.states_sha256 == other.states_sha256


def test_a_client_whose_reply_does_not_count_is_recorded_with_the_reason_and_keeps_its_earlier_state(tmp_path):
    class Broken(SimulatedClients):
        def train(self, round_, requests, upcoming=()):
            replies = super().train(round_, requests, upcoming)
            return [NoReply(1, "its upload is not finite") if r.client == 1 and round_.index == 1 else r for r in replies]

    recipe = tiny_recipe("fedmrl", participation=given(tmp_path, *[[0, 1]] * 3))
    setting = prepare(recipe, CPU)
    fed, meant = Simulation(recipe, setting), federation(recipe, {1: [1]})
    fed.clients = Broken([setting])
    result = fed.run()
    assert [[left.model_dump() for left in record.left_out] for record in result.records] == [
        [],
        [{"client": 1, "reason": "its upload is not finite"}],
        [],
    ]
    assert "left_out" not in result.records[0].plain() and "left_out" in result.records[1].plain()
    assert result.records[1].participants == [0] and result.clients[1].rounds == 2
    assert result.states_sha256 == meant.run().states_sha256


@pytest.mark.parametrize("method", ["fedmrl", "standalone"])
def test_clients_that_count_as_they_reply_are_asked_for_accuracy_only_when_all_are(method, tmp_path):
    class Counting(SimulatedClients):
        scores_every_round = False
        evaluations = 0

        def train(self, round_, requests, upcoming=()):
            replies = super().train(round_, requests, upcoming)
            turns = [self._turn(replace(request, since=round_.index)) for request in requests]
            counts = self.engine.evaluate(turns, recipe.method.modes[:1])
            return [replace(r, correct=count["own"]) for r, count in zip(replies, counts, strict=True)]

        def evaluate(self, requests, modes):
            self.evaluations += 1
            return super().evaluate(requests, modes)

    recipe = tiny_recipe(method, rounds=4, evaluation__every=2)
    fed, plain = federation(recipe), federation(recipe).run()
    fed.clients = Counting([prepare(recipe, CPU)])
    result = fed.run()
    assert fed.clients.evaluations == 3  # after rounds 2 and 4, and in all modes at the end
    assert (result.accuracy.all, result.inference) == (plain.accuracy.all, plain.inference)
    assert result.accuracy.participants.own == plain.accuracy.participants.own
    assert [r.accuracy.participants.own for r in result.records] == [r.accuracy.participants.own for r in plain.records]
    for record in result.records:
        measured = method == "fedmrl" and record.round % 2 == 0
        assert (record.accuracy.participants.aggregated is not None) is measured


def test_a_round_that_nobody_answers_leaves_everything_as_it_was(tmp_path):
    recipe = tiny_recipe("fedmrl", participation=given(tmp_path, [0, 1], [0, 1], [2]), evaluation__every=2)
    fed = federation(recipe, {1: [0, 1]})
    first = fed.next_round()
    fed.commit(first)
    fed.commit(fed.next_round())
    assert all(torch.equal(fed.now.server[name], first.server[name]) for name in first.server)
    assert fed.now.last_round == first.last_round and fed.now.times == first.times == {0: 1, 1: 1}
    record = fed.now.records[-1]
    assert (record.asked, record.participants, record.loss) == ([0, 1], [], None)
    assert record.accuracy.participants is None and record.accuracy.all and record.up.bytes == 0 < record.down.bytes
    assert fed.run().status == "finished"


@pytest.mark.parametrize("engine", [Reference(), Batched()], ids=["reference", "batched"])
@pytest.mark.parametrize("method", ["fedmrl", "fedkd", "fedproto"])
def test_a_client_that_joins_between_rounds_counts_as_if_it_had_been_left_out_before(method, engine, tmp_path):
    rounds = [[0, 1], [2, 4], [4]]
    larger = tiny_recipe(method, clients=5, participation=given(tmp_path, *rounds), evaluation__every=100)
    whole = Simulation(larger, setting := prepare(larger, CPU), engine)
    four = replace(setting, members={k: setting.members[k] for k in range(4)})
    grown = Simulation(larger, four, engine)
    grown.commit(grown.next_round())
    assert grown.join(setting.members[4]) == 4
    one, other = grown.run(), whole.run()
    assert without_time(one.records) == without_time(other.records)
    assert one.states_sha256 == other.states_sha256
    assert len(one.clients) == 5


def test_a_client_with_a_model_of_a_new_kind_can_join():
    recipe = tiny_recipe("fedmrl", participation=1.0)
    setting = prepare(recipe, CPU)
    fed = Simulation(recipe, setting, Batched())
    fed.commit(fed.next_round())
    fed.join(replace(setting.members[0], model=CNN(conv1=3, conv2=3, fc1=9, fc2=7)))
    run = fed.run()
    assert run.clients[4].model == "CNN(3-3-9-7)" and run.clients[4].rounds == 2
    assert run.records[1].participants == [0, 1, 2, 3, 4], "it is drawn among all that there are"


def test_a_client_with_a_model_of_its_own_can_join_a_run_of_tokens():
    data, recipe = dataset_of(texts()), tiny_recipe("fedmrl", participation=1.0, rounds=2)
    setting = prepare(recipe, CPU, [OwnModel("mean", MeanText)] * 4, data)
    fed = Simulation(recipe, setting)
    fed.commit(fed.next_round())
    fed.join(replace(setting.members[0], model=OwnModel("conv", ConvText)))
    run = fed.run()
    assert (run.clients[4].model, run.clients[4].rounds) == ("conv", 1)


def test_an_engine_can_be_given_as_an_object_or_a_class():
    recipe = tiny_recipe("fedmrl")
    by_name = fedmrl.run(recipe, engine="batched")
    for engine in (Batched(), Batched(way="eager")):
        assert fedmrl.run(recipe, engine=engine).states_sha256 == by_name.states_sha256

    class Mine(ReferenceEngine):
        name = "mine"

    assert fedmrl.run(recipe, engine=Mine).engine == "mine"


@pytest.mark.parametrize("engine", [3, "fast", None, ReferenceEngine(prepare(tiny_recipe(), CPU))])
def test_what_is_no_engine_is_refused_by_the_name_of_the_argument(engine):
    with pytest.raises(fedmrl.UserError, match=r"^engine is .*; choose auto, reference, batched, ray, or give a factory"):
        fedmrl.run(tiny_recipe(), engine=engine)


def test_what_makes_something_else_than_an_engine_is_refused():
    with pytest.raises(fedmrl.UserError, match="it must return a fedmrl"):
        fedmrl.run(tiny_recipe(), engine=lambda *settings: "no engine")


def test_the_server_knows_of_a_client_its_name_its_counts_and_its_models_label_only():
    recipe = tiny_recipe("fedmrl", models__local=CNNS)
    clients: Clients = SimulatedClients([prepare(recipe, CPU)])
    one = clients.roster()[1]
    setting = clients.setting()
    labels = setting.data.y[setting.members[1].train]
    assert (one.name, one.model, one.train, one.test) == ("client 1", "CNN(3-2-5-6)", len(labels), len(setting.members[1].test))
    assert one.classes == dict(zip(*(found.tolist() for found in np.unique(labels, return_counts=True)), strict=True))


def test_a_reply_is_plain_data_that_can_be_sent():
    recipe = tiny_recipe("fedmrl")
    fed = Simulation(recipe, prepare(recipe, CPU))
    round_ = Round(0, recipe.rounds)
    for reply in fed.clients.train(round_, fed.requests(round_)):
        sent = pickle.loads(pickle.dumps(reply))
        assert sent.told.tolist() == reply.told.tolist() and sent.flops == reply.flops
        assert all(torch.equal(sent.upload[name], reply.upload[name]) for name in reply.upload)

"""A client that sends poisoned uploads over the network: each rule gives what it gives in a simulation of the same lie."""

import pytest
from in_process import in_process, same_numbers
from test_flower_clients import changed
from tiny import tiny_recipe

from fedmrl.federation.launch import pick_device
from fedmrl.federation.server import Federation
from fedmrl.federation.setup import prepare, schedule
from fedmrl.federation.simulated import SimulatedClients

RULES = {
    "mean": {"rule": "mean"},
    "median": {"rule": "median"},
    "trimmed-mean": {"rule": "trimmed-mean", "trim": 0.2},
    "krum": {"rule": "krum", "byzantine": 1},
}
LIAR = 0


class OneLies(SimulatedClients):
    """Simulated clients, of which one sends its weights times -10."""

    def train(self, round_, requests, upcoming=()):
        replies = super().train(round_, requests, upcoming)
        for reply in replies:
            if reply.client == LIAR:
                reply.upload.update({name: tensor * -10 for name, tensor in reply.upload.items()})
        return replies


def simulated(recipe):
    setting = prepare(recipe, pick_device("cpu"))
    return Federation(recipe, setting.terms, OneLies([setting]), schedule(recipe), ran_on=("reference", "cpu")).run()


def over_the_network(recipe, folder, monkeypatch):
    lie = changed(arrays=lambda arrays: {name: array * -10 for name, array in arrays.items()})
    with in_process(folder, recipe, monkeypatch) as made:
        made.grid.change = lambda client, kind, group, frame: lie(frame) if (client, kind) == (LIAR, "train") else frame
        return made.run()


def poisoned(rule):
    settings = {"clients": 5, "participation": 1.0, "rounds": 3, "evaluation__every": 1, "training__lr": 0.02}
    return tiny_recipe(aggregation=RULES[rule], **settings)


@pytest.mark.parametrize("rule", RULES)
def test_a_poisoned_client_does_over_the_network_what_it_does_in_a_simulation(rule, tmp_path, monkeypatch):
    recipe = poisoned(rule)
    network = over_the_network(recipe, tmp_path, monkeypatch)
    assert all(record.participants == [0, 1, 2, 3, 4] for record in network.records), "such a lie passes all checks"
    same_numbers(network, simulated(recipe))


def test_the_poison_moves_the_mean_far_more_than_the_median():
    losses = {rule: simulated(poisoned(rule)).records[-1].loss for rule in ("mean", "median")}
    assert losses["median"] < losses["mean"]

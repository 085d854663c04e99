"""A whole federation on loopback, with TLS and registered keys, against the reference engine."""

import pytest
from tiny import tiny_recipe

from fedmrl.federation.launch import pick_device
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulation import Simulation
from fedmrl.flower.deal import deal
from fedmrl.flower.local import LocalFederation
from fedmrl.flower.server_folder import run_recipe
from fedmrl.results import RunResult

FAST = {"round_seconds": 60.0, "pause_seconds": 1.0, "wait_seconds": 60.0}


def simulated(recipe):
    """What the reference engine gives on this machine alone."""
    return Simulation(recipe, prepare(recipe, pick_device("cpu")), "reference").run()


def same_numbers(network, reference):
    """Everything that is not time or place."""
    for one, other in zip(network.records, reference.records, strict=True):
        left, right = one.plain(), other.plain()
        for key in ("round", "asked", "participants", "loss", "accuracy", "up", "down", "flops"):
            assert left[key] == right[key], (key, left["round"])
    assert network.accuracy == reference.accuracy
    assert network.inference == reference.inference
    assert network.communication == reference.communication
    assert network.clients.rows() == reference.clients.rows()


@pytest.fixture
def recipe():
    return tiny_recipe("fedmrl", rounds=2, clients=3, participation=1.0, evaluation__every=1)


def test_a_federation_gives_the_reference_engines_numbers(tmp_path, recipe):
    clients = deal(recipe, tmp_path / "clients")
    with LocalFederation(tmp_path / "f", clients, FAST) as local:
        local.start()
        run_id = local.server.run("first", run_recipe(recipe, 3))
        status = local.wait("first", run_id, 240)
        assert status == "completed", local.server.log("first")
        network = RunResult.read(local.server.runs / "first")
    assert not local.descendants()
    same_numbers(network, simulated(recipe))

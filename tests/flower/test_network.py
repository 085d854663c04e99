"""A whole federation on loopback, with TLS and registered keys, against the reference engine."""

import pytest
from in_process import same_numbers, simulated
from tiny import tiny_recipe

from fedmrl.flower.deal import deal
from fedmrl.flower.local import LocalFederation
from fedmrl.flower.server_folder import run_recipe
from fedmrl.results import RunResult

FAST = {"round_seconds": 60.0, "pause_seconds": 1.0, "wait_seconds": 60.0}


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

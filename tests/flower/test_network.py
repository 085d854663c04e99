"""A whole federation on loopback, with TLS and registered keys, against the reference engine."""

import time

import pytest
from in_process import same_numbers, simulated
from own_models import bring
from tiny import tiny_recipe

from fedmrl.flower.certificates import make_certificates
from fedmrl.flower.deal import deal
from fedmrl.flower.local import LocalFederation
from fedmrl.flower.server_folder import run_recipe
from fedmrl.results import RunResult

FAST = {"round_seconds": 60.0, "pause_seconds": 1.0, "wait_seconds": 60.0}


@pytest.fixture
def recipe():
    return tiny_recipe("fedmrl", rounds=2, clients=3, participation=1.0, evaluation__every=1)


@pytest.mark.parametrize(
    "own",
    [
        pytest.param(None, id="the recipe's models"),
        pytest.param(["ResNet8", "ViT", "Frozen"], id="models of three kinds", marks=pytest.mark.federation),
    ],
)
def test_a_federation_gives_the_reference_engines_numbers(tmp_path, recipe, own):
    if own:  # a simulation that is given such models would choose another shared model than the server, who sees none
        recipe = recipe.model_copy(update={"models": recipe.models.model_copy(update={"small": recipe.models.shared})})
    clients, models = bring(recipe, tmp_path / "clients", own) if own else (deal(recipe, tmp_path / "clients"), None)
    with LocalFederation(tmp_path / "f", clients, FAST) as local:
        local.start()
        run_id = local.server.run("first", run_recipe(recipe, 3))
        status = local.wait("first", run_id, 240)
        assert status == "completed", local.server.log("first")
        network = RunResult.read(local.server.runs / "first")
    assert not local.descendants()
    same_numbers(network, simulated(recipe, models))


def nodes(server, *states):
    """The ids of the SuperNodes that Flower knows in these states."""
    return {node["node-id"] for node in server._flwr("supernode", "list")["nodes"] if node["status"] in states}


# What a SuperNode that is refused says.
REFUSALS = {
    "unregistered key": "Failed to activate SuperNode",
    "no key": "All SuperNodes must be registered",
    "wrong authority": "CERTIFICATE_VERIFY_FAILED",
    "plain text": "Connection attempt failed",  # and it goes on trying
}


def test_only_a_registered_key_over_tls_from_the_right_authority_is_let_in(tmp_path, recipe):
    paths = deal(recipe.model_copy(update={"clients": 5}), tmp_path / "clients")
    with LocalFederation(tmp_path / "f", paths, FAST) as local:
        local.start_server()
        for number, client in enumerate(local.clients):
            if number == 1:  # it has a key, which nobody registered
                client.connect(local.server.address, local.server.authority, local.ports[2])
            else:
                local.register(number)
            if number == 0:
                good = nodes(local.server, "registered")
        make_certificates(tmp_path / "other", ["127.0.0.1"])
        right, env = zip(*(client.supernode() for client in local.clients), strict=True)
        started = {}
        commands = {
            "right": right[0],
            "unregistered key": right[1],
            "no key": without(right[2], "--auth-supernode-private-key"),
            "wrong authority": [
                *without(right[3], "--root-certificates"),
                "--root-certificates",
                str(tmp_path / "other/ca.crt"),
            ],
            "plain text": [*without(without(right[4], "--root-certificates"), "--auth-supernode-private-key"), "--insecure"],
        }
        for (what, command), own in zip(commands.items(), env, strict=True):
            started[what] = local._child(command, own, what)
        end = time.monotonic() + 120
        while time.monotonic() < end and (
            nodes(local.server, "online") != good
            or any(started[what].poll() is None for what in REFUSALS if what != "plain text")
        ):
            time.sleep(1)
        assert len(good) == 1
        assert nodes(local.server, "online") == good
        for what, words in REFUSALS.items():
            assert started[what].poll() != 0, what
            assert words in (local.folder / f"{what}.log").read_text(), what


def without(command, option):
    """A command without an option and its value."""
    place = command.index(option)
    return [*command[:place], *command[place + 2 :]]

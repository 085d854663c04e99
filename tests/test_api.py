"""From Python, a wrong type is told in a sentence before anything is done or written."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tiny import tiny_recipe
from torch import nn

import fedmrl
from fedmrl import OwnModel, UserError


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 6), nn.ReLU(), nn.Linear(6, 4))


OWN = OwnModel("net", net, "3")


@pytest.mark.parametrize("seeds", [[0.5], ["0"], "01", [-1], [0, 0], 3, None, [True]])
def test_seeds_are_whole_numbers(seeds):
    with pytest.raises(UserError, match=r"give whole numbers from 0, each once"):
        fedmrl.run_seeds(tiny_recipe("standalone"), seeds)


def test_seeds_may_be_numpys():
    done = fedmrl.run_seeds(tiny_recipe("standalone", rounds=1), np.arange(2))
    assert [run.seed for run in done] == [0, 1]


@dataclass(frozen=True)
class Mine:
    """A kind of model that fedmrl does not know."""

    label: str = "mine"

    def build(self, shape, classes):
        return fedmrl.split(net(), "3", torch.zeros(2, *shape))


def test_a_kind_of_model_is_whatever_has_a_label_and_builds_one():
    done = fedmrl.run(tiny_recipe("standalone", rounds=1), models=[Mine()] * 4)
    assert {client.model for client in done.clients} == {"mine"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"models": [net()] * 4}, "client 0's is a Sequential; give a list with a fedmrl.OwnModel for each client"),
        ({"models": [OWN, net, OWN, OWN]}, "client 1's is a function"),
        ({"models": net()}, "client 0's is a Sequential"),
        ({"models": "net"}, "client 0's is a str"),
        ({"models": [OWN] * 3}, "3 models were given for 4 clients; give one for each"),
        ({"out": 3}, "out is 3; it must name a folder"),
        ({"out": ""}, "out is ''; it must name a folder"),
        ({"data": "digits"}, "data is a str; leave it out"),
        ({"on_round": 3}, "on_round is 3; it must be a function"),
        ({"on_notice": "print"}, "on_notice is 'print'; it must be a function"),
        ({"device": None}, "device is None; choose auto, cpu or cuda"),
        ({"engine": 3}, "is 3; choose auto"),
    ],
)
def test_what_run_is_given_is_of_the_type_it_must_be(given, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        fedmrl.run(tiny_recipe("standalone"), **{"out": "run", **given})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("recipe", [3, None, {}])
def test_a_recipe_is_one_or_names_one(recipe):
    for call in (lambda: fedmrl.run(recipe), lambda: fedmrl.run_seeds(recipe, [0]), lambda: fedmrl.compare(recipe)):
        with pytest.raises(UserError, match=r"^recipe"):
            call()


def test_a_recipe_by_name_takes_settings_and_a_method():
    recipe = tiny_recipe("standalone", rounds=1)
    one = fedmrl.run(recipe, method=fedmrl.FedMRL(d1=3), settings={"seed": 4})
    assert (one.method, one.seed, one.recipe.method.d1) == ("fedmrl", 4, 3)
    assert fedmrl.run(recipe, method="fedmrl", settings=["method.d1=3", "seed=4"]).states_sha256 == one.states_sha256
    with pytest.raises(UserError, match="method is 3"):
        fedmrl.run(recipe, method=3)


@pytest.mark.parametrize("recipe", [3, None, b"quickstart", ["quickstart"], "a" * 5000])
def test_a_recipe_is_loaded_by_its_name(recipe):
    with pytest.raises(UserError, match=r"^recipe"):
        fedmrl.load_recipe(recipe)


@pytest.mark.parametrize("settings", ["rounds=3", 3, [3]])
def test_settings_are_keys_with_values(settings):
    with pytest.raises(UserError, match="give keys with their values"):
        fedmrl.load_recipe("quickstart", settings)


@pytest.mark.parametrize(("key", "most"), [("rounds", "1e+07"), ("training.epochs", "1e+06"), ("method.d1", "100000")])
def test_numbers_that_no_machine_can_hold_are_refused(key, most):
    with pytest.raises(UserError, match=rf"{key} is 10+; it must be at most {most[:2]}"):
        fedmrl.load_recipe("quickstart", {key: 10**30})


@pytest.mark.parametrize("words", [("net", net(), "3"), ("net", 3, "3"), ("net", net, 3), (3, net, "3")])
def test_a_model_of_ones_own_is_a_label_a_function_and_a_layer(words):
    with pytest.raises(UserError, match="OwnModel"):
        OwnModel(*words)

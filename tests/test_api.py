"""From Python, a wrong type is told in a sentence before anything is done or written."""

from dataclasses import dataclass
from inspect import signature
from pathlib import Path

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
        (
            {"models": [OWN, OWN, 3]},
            r"models\[2\] is an int; give an nn.Module, a function that makes one, or a fedmrl.OwnModel",
        ),
        ({"models": "net"}, r"models\[0\] is 'net'; give an nn.Module"),
        ({"models": [dict]}, r"models\[0\] is <class 'dict'>; give an nn.Module"),
        ({"models": []}, "models is empty"),
        ({"models": [OWN] * 5}, "models has 5 models for 4 clients; give at most one for each"),
        ({"small": 3}, "small is an int; give an nn.Module"),
        ({"out": 3}, "out is 3; it must name a file or folder"),
        ({"out": ""}, "out is ''; it must name a file or folder"),
        ({"data": "digits"}, "digits does not exist; name a file or a folder of images"),
        ({"data": 3}, "data is an int; give .x, y., a torch Dataset, a DataFrame"),
        ({"label": "y"}, "label is for data that is given, and there is none"),
        ({"roundz": 3}, "there is no key roundz; did you mean rounds?"),
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


class Odd:
    """An object that is neither true, nor equal to anything."""

    __hash__ = None

    def __bool__(self):
        raise ValueError("neither true nor false")

    def __eq__(self, other):
        raise ValueError("equal to nothing")


ODD = [
    None,
    [],
    {},
    "",
    "x",
    "\0",
    "\ud800",
    "x" * 5000,
    3,
    -1,
    1.5,
    float("nan"),
    10**400,
    True,
    b"x",
    Path("nowhere"),
    object(),
]
ODD += [np.zeros(3), np.zeros(()), torch.ones(2), Odd(), [Odd()], [None], {1: 2}, {"": 1}, {"rounds": Odd()}, print]
X, Y = np.zeros((8, 1, 2, 2), np.uint8), np.arange(8) % 2
RECIPE = {"method": "standalone", "rounds": 1, "clients": 2, "participation": 1}
CALLS = {
    "run": (fedmrl.run, lambda: {"recipe": tiny_recipe(**RECIPE)}),
    "run_seeds": (fedmrl.run_seeds, lambda: {"recipe": tiny_recipe(**RECIPE), "seeds": [0]}),
    "compare": (fedmrl.compare, lambda: {"recipe": tiny_recipe(**RECIPE), "methods": ["standalone"]}),
    "load_recipe": (fedmrl.load_recipe, lambda: {"recipe": "quickstart"}),
    "OwnModel": (OwnModel, lambda: {"label": "a", "make": net, "last": "3"}),
    "split": (fedmrl.split, lambda: {"model": net(), "last": "3", "example": torch.zeros(2, 256)}),
    "Split": (fedmrl.Split, lambda: {"extractor": nn.Identity(), "header": nn.Linear(2, 2), "dim": 2}),
    "register": (fedmrl.register, lambda: {}),
    "Dataset": (fedmrl.Dataset, lambda: {"name": "x", "x": X, "y": Y, "classes": ("a", "b"), "official_train": 8,
                                         "mean": np.zeros(1), "std": np.ones(1)}),
    "RunResult.read": (fedmrl.RunResult.read, lambda: {}),
    "Recipe": (fedmrl.Recipe, lambda: {}),
    "FedMRL": (fedmrl.FedMRL, lambda: {}),
    "Batched": (fedmrl.engines.Batched, lambda: {}),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_no_argument_of_a_wrong_kind_ends_in_a_traceback(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, good = CALLS[call]
    for argument in signature(function).parameters:
        for value in ODD:
            try:
                function(**{**good(), argument: value})
            except UserError as error:
                assert len(str(error).splitlines()) == 1, (argument, value)


def test_a_result_is_asked_for_a_protocol_that_there_is():
    result = fedmrl.run(tiny_recipe("standalone", rounds=1))
    for ask in (result.headline, result.curve, result.of_clients):
        with pytest.raises(UserError, match="protocol is 'best'; choose fair, own, paper"):
            ask("best")


def test_a_methods_fields_are_told_in_a_sentence():
    with pytest.raises(UserError, match=r"^FedMRL: d1: Input should be a valid integer"):
        fedmrl.FedMRL(d1="many")
    with pytest.raises(UserError, match=r"^seeds is empty; name at least one$"):
        fedmrl.run_seeds(tiny_recipe("standalone"), [])

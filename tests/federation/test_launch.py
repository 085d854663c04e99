"""What is given from Python is what is trained on, a folder says so, and nothing else is taken in its place."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny import data_file, tiny_recipe

import fedmrl
from fedmrl import Dataset, UserError, load_recipe
from fedmrl.data import Given, sources


def own_data(shift=0):
    with np.load(data_file()) as arrays:
        x, y = arrays["x"] + np.uint8(shift), arrays["y"].astype(np.int64)
    return Dataset("my hospital", x, y, ("a", "b", "c", "d"), len(x), np.array([128.0]), np.array([50.0]))


RECIPE = tiny_recipe("standalone")
SETTINGS = {"partition.classes_per_client": 2, "models.local": [{"hidden": [4]}], "method.name": "standalone"}
DIGITS = load_recipe("quickstart", {"rounds": 1, "clients": 5, **SETTINGS})


def test_data_from_python_is_fingerprinted_and_never_replaced_by_what_the_recipe_named(tmp_path):
    result = fedmrl.run(DIGITS, data=own_data(), out=tmp_path / "one")
    again = load_recipe(tmp_path / "one")
    assert isinstance(again.data, Given) and again.data.title == "my hospital" and len(again.data.sha256) == 64
    with pytest.raises(UserError, match=r"data \(my hospital\) was given from Python, and is needed again; run it there"):
        fedmrl.run(tmp_path / "one")
    repeated = fedmrl.run(tmp_path / "one", data=own_data())
    assert repeated.states_sha256 == result.states_sha256 != fedmrl.run(DIGITS).states_sha256


def test_it_is_said_that_a_rerun_needs_it_again():
    said = []
    fedmrl.run(DIGITS, data=own_data(), on_notice=said.append)
    assert any(line.startswith("the data (my hospital) was given from Python: a rerun needs it again") for line in said)


def test_a_run_goes_on_with_the_same_data_only(tmp_path):
    def stop(record):
        raise KeyboardInterrupt

    longer = DIGITS.model_copy(update={"rounds": 2})
    with pytest.raises(fedmrl.InterruptedRun):
        fedmrl.run(longer, data=own_data(), out=tmp_path / "one", on_round=stop)
    with pytest.raises(UserError, match=r"was started with another recipe: data.sha256 was '\w+', is now '\w+'"):
        fedmrl.run(longer, data=own_data(1), out=tmp_path / "one", resume=True)
    result = fedmrl.run(longer, data=own_data(), out=tmp_path / "one", resume=True)
    assert result.states_sha256 == fedmrl.run(longer, data=own_data()).states_sha256


@pytest.mark.parametrize("change", [{"classes": ("a", "b", "c", "e")}, {"mean": np.array([127.0])}, {"official_train": 90}])
def test_a_fingerprint_is_of_all_that_numbers_follow_from(change):
    changed = dataclasses.replace(own_data(), **change)
    assert sources.source_of(changed) != sources.source_of(own_data()) == sources.source_of(own_data())


def test_a_dataset_that_was_read_by_its_name_is_still_called_by_it(tmp_path):
    data = sources.load(RECIPE.data)
    fedmrl.run(DIGITS, data=data, out=tmp_path / "one")
    assert load_recipe(tmp_path / "one").data == RECIPE.data
    assert fedmrl.run(tmp_path / "one").states_sha256 == fedmrl.run(DIGITS, data=data).states_sha256


def test_a_comparison_remembers_its_data_too(tmp_path):
    both = fedmrl.compare(DIGITS, ["standalone", "fd"], data=own_data(), out=tmp_path / "both")
    assert {recipe.data.title for recipe in both.recipes.values()} == {"my hospital"}
    assert isinstance(load_recipe(tmp_path / "both" / "fd").data, Given)


class Mine(fedmrl.Standalone):
    """Not registered."""

    name = "mine"


def test_a_method_that_is_not_registered_runs_and_its_folder_says_what_it_needs(tmp_path):
    said = []
    fedmrl.run(RECIPE, method=Mine(), out=tmp_path / "one", on_notice=said.append)
    assert "the method 'mine' was given from Python and is not registered: a rerun needs it again" in said
    with pytest.raises(
        UserError, match=r"method.name is 'mine', which is not a known method; .* came from Python, unregistered"
    ):
        fedmrl.run(tmp_path / "one")
    assert fedmrl.run(tmp_path / "one", method=Mine()).title == "Mine"


class Impostor(fedmrl.FedMRL):
    """Has the name of another."""

    name = "fedmrl"

    def loss(self, net, batch):
        return super().loss(net, batch) * torch.tensor(2.0)


def test_a_method_with_the_name_of_another_is_not_replaced_by_it_on_a_rerun(tmp_path):
    fedmrl.run(tiny_recipe("fedmrl"), method=Impostor(d1=3), out=tmp_path / "one")
    with pytest.raises(
        UserError, match=r"method.name of that run came from Python, unregistered .*, and is something else here"
    ):
        fedmrl.run(tmp_path / "one")

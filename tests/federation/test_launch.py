"""What is given from Python is what is trained on, a folder says so, and nothing else is taken in its place."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny import data_file, tiny_recipe

import fedmrl
from fedmrl import Dataset, UserError, load_recipe
from fedmrl.data import Given, sources
from fedmrl.models import MLP, MODELS


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


def stop(record):
    raise KeyboardInterrupt


def test_a_run_does_not_go_on_with_another_method_of_the_same_name(tmp_path):
    with pytest.raises(fedmrl.InterruptedRun):
        fedmrl.run(tiny_recipe("fedmrl"), method=Impostor(d1=3), out=tmp_path / "one", on_round=stop)
    with pytest.raises(UserError, match=r"method.name came from Python, unregistered .*, and comes from fedmrl itself now"):
        fedmrl.run(tiny_recipe("fedmrl"), out=tmp_path / "one", resume=True)
    (tmp_path / "one" / "origins.json").write_text("{}")
    with pytest.raises(UserError, match=r"origins.json is damaged or was changed"):
        fedmrl.run(tiny_recipe("fedmrl"), out=tmp_path / "one", resume=True)


def test_a_changed_dataset_is_not_what_it_was_read_from(tmp_path):
    read = sources.load(RECIPE.data)
    changed = dataclasses.replace(read, x=read.x + np.uint8(1), name="brighter")
    assert changed.source is None
    fedmrl.run(RECIPE, data=changed, out=tmp_path / "one")
    assert isinstance(load_recipe(tmp_path / "one").data, Given)


def test_a_rerun_takes_no_other_data(tmp_path):
    fedmrl.run(DIGITS, data=own_data(), out=tmp_path / "one")
    with pytest.raises(UserError, match=r"data is not what this recipe was run on \(my hospital, SHA-256 \w{12}…\)"):
        fedmrl.run(tmp_path / "one", data=own_data(1))


@fedmrl.register
class Deep(MLP):
    """A registered model that is derived from one of fedmrl's."""

    name = "deep"


class Unknown(MLP):
    """Not registered, under a name that is."""

    name = "cnn-5"


def test_a_model_that_is_derived_from_another_keeps_its_name(tmp_path):
    MODELS.add("deep", Deep, module=__name__)
    recipe = tiny_recipe("standalone", models__local=[{"name": "deep", "hidden": [6]}])
    result = fedmrl.run(recipe, out=tmp_path / "one")
    assert load_recipe(tmp_path / "one").models.local == [Deep(hidden=(6,))]
    assert fedmrl.run(tmp_path / "one").states_sha256 == result.states_sha256


def test_a_model_that_no_recipe_can_name_is_not_replaced_by_one_of_its_name(tmp_path):
    said = []
    local = RECIPE.models.model_copy(update={"local": [Unknown(hidden=(6,))]})
    fedmrl.run(RECIPE.model_copy(update={"models": local}), out=tmp_path / "one", on_notice=said.append)
    assert "the model 'cnn-5' was given from Python and is not registered: a rerun needs it again" in said
    with pytest.raises(UserError, match="came from Python, unregistered"):
        fedmrl.run(tmp_path / "one")


def test_what_settings_change_may_come_from_elsewhere(tmp_path):
    fedmrl.run(RECIPE, method=Mine(), out=tmp_path / "one")
    assert fedmrl.run(tmp_path / "one", settings={"method.name": "standalone"}).title == "Standalone"


def test_settings_change_a_method_that_is_given_as_an_object():
    recipe = fedmrl.run(tiny_recipe("fedmrl"), method=Impostor(d1=3), settings={"method.d1": 2, "rounds": 1})
    assert "d1 = 2" in recipe.config
    with pytest.raises(UserError, match="method is given as an object, and settings name 'fd'"):
        fedmrl.run(tiny_recipe("fedmrl"), method=Impostor(d1=3), settings={"method.name": "fd"})


@pytest.mark.parametrize("name", ["config.toml", "split.json", "rounds.jsonl", "inputs.json"])
def test_a_finished_run_is_read_only_as_it_was_written(tmp_path, name):
    fedmrl.run(RECIPE, out=tmp_path / "one")
    path = tmp_path / "one" / name
    path.write_text(path.read_text().replace("3", "4", 1))
    with pytest.raises(UserError, match=r"damaged or|changed since|another recipe|differs from the split"):
        fedmrl.run(RECIPE, out=tmp_path / "one", resume=True)
    with pytest.raises(UserError, match=f"{name} is damaged or was changed"):
        fedmrl.RunResult.read(tmp_path / "one")


@pytest.mark.parametrize("engine", [lambda *settings: "no", fedmrl.engines.Batched, print, fedmrl.engines.Engine])
def test_what_makes_no_engine_is_refused_before_anything_is_written(tmp_path, engine):
    with pytest.raises(UserError, match=r"^engine is"):
        fedmrl.run(RECIPE, engine=engine, out=tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_an_engine_is_run_in_a_way_that_there_is():
    with pytest.raises(UserError, match="way is 'fast'; choose eager, captured, compiled"):
        fedmrl.engines.Batched(way="fast")


def test_submodules_are_there_once_fedmrl_is_imported():
    program = "import fedmrl; print(fedmrl.engines.Batched(), fedmrl.data.Dataset.__name__)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout.startswith(b"Batched(")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": "01"}, "give whole numbers from 0"),
        ({"out": 3}, "out is 3; it must name a file or folder"),
        ({"data": 3}, "data is an int"),
        ({"models": 3}, r"models\[0\] is an int"),
        ({"methods": {"../x": fedmrl.FD()}}, r"methods names '../x'; use small letters"),
    ],
)
def test_a_comparison_refuses_wrong_types_and_names(tmp_path, given, says):
    with pytest.raises(UserError, match=says):
        fedmrl.compare(RECIPE, **{"methods": ["fd"], **given})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": [0, 1]}, "give NumPy arrays"),
        ({"y": np.zeros(96)}, "y must be whole numbers from 0"),
        ({"y": np.arange(96)}, "y goes up to 95, and there are 4 classes"),
        ({"x": np.zeros((96, 16, 16), np.uint8)}, "images need channels"),
        ({"x": np.full((96, 1, 16, 16), np.nan)}, "NaN"),
        ({"mean": np.zeros(3)}, "mean and std must have 1 finite values each"),
        ({"std": np.zeros(1)}, "mean and std must have 1 finite values each, .* std must be above 0"),
        ({"classes": "abcd"}, "classes is 'abcd'; it must be a tuple with a name for each class"),
        ({"official_train": 2.5}, "official_train is 2.5; it must be 1 to 96"),
        ({"name": None}, "a dataset's name is None; it must be a line of text"),
        ({"official_train": 0}, "official_train is 0"),
    ],
)
def test_a_dataset_that_is_none_is_refused_when_it_is_made(change, says):
    with pytest.raises(UserError, match=says):
        dataclasses.replace(own_data(), **change)

"""A federation in which each client brings a model of another kind, against the reference engine."""

import tomllib

import numpy as np
import pytest
import tomli_w
from in_process import in_process, same_numbers, simulated
from kinds_of_model import texts
from own_models import bring
from tiny import tiny_recipe

from fedmrl import UserError
from fedmrl.federation.setup import terms_elsewhere
from fedmrl.flower.checks import Refused, check_data
from fedmrl.flower.client_config import load_organisation
from fedmrl.flower.client_folder import ClientFolder
from fedmrl.flower.server_folder import run_recipe
from fedmrl.models import MLP

METHODS = ["fedmrl", "standalone", "fd", "fml"]
FIVE = ["ResNet8", "ViT", "cnn3", "mlp", "Frozen"]


@pytest.mark.parametrize("method", METHODS)
def test_clients_with_models_of_five_kinds_get_the_reference_engines_numbers(method, tmp_path, monkeypatch):
    small = {"conv1": 2, "conv2": 3, "fc1": 7, "fc2": 5}
    d1 = {"method__d1": 4} if method == "fedmrl" else {}
    recipe = tiny_recipe(method, clients=5, participation=1.0, rounds=2, evaluation__every=1, models__small=small, **d1)
    paths, models = bring(recipe, tmp_path / "clients", FIVE)
    assert len({load_organisation(path / "client.toml").model.build((1, 16, 16), 4).dim for path in paths}) == 5
    with in_process(tmp_path, recipe, monkeypatch, paths=paths) as made:
        network = made.run()
    same_numbers(network, simulated(recipe, models))
    assert [client.model for client in network.clients] == FIVE


@pytest.fixture
def recipe(tmp_path):
    """Texts as tokens from 0 to 29, as two arrays in a file."""
    x, y = texts()
    np.savez(tmp_path / "texts.npz", x=x, y=y)
    small = {"name": "text", "vocabulary": 30, "embedding": 4, "hidden": [5]}
    data = {"data__name": "files", "data__files": [str(tmp_path / "texts.npz")]}
    keys = {"participation": 1.0, "rounds": 2, "evaluation__every": 1, "method__d1": 4}
    return tiny_recipe("fedmrl", **data, **keys, models__local=[small], models__small=small)


def test_clients_with_models_for_texts_get_the_reference_engines_numbers(recipe, tmp_path, monkeypatch):
    paths, models = bring(recipe, tmp_path / "clients", ["MeanText", "ConvText"] * 2)
    with in_process(tmp_path, recipe, monkeypatch, paths=paths) as made:
        network = made.run()
    same_numbers(network, simulated(recipe, models))
    assert [client.model for client in network.clients] == ["MeanText", "ConvText"] * 2


def test_a_run_of_texts_has_the_vocabulary_of_the_recipe_not_of_each_client(recipe, tmp_path):
    path = bring(recipe, tmp_path / "clients", ["MeanText"] * 4)[0][0]
    x, _ = texts()
    np.savez(path / "data.npz", x=x % 7, y=np.arange(90) % 3)
    organisation = load_organisation(path / "client.toml")
    assert organisation.data.vocabulary == 7
    given = run_recipe(recipe, 4)
    assert given.data.vocabulary == 30 and organisation.in_run(given, 0)[0].vocabulary == 30
    check_data(given, organisation)


def test_a_client_refuses_a_recipe_for_another_kind_of_data_or_a_smaller_vocabulary(recipe, tmp_path):
    paths = bring(recipe, tmp_path / "clients", ["MeanText"] * 4)[0]
    organisation, given = load_organisation(paths[0] / "client.toml"), run_recipe(recipe, 4)
    numbers = given.model_copy(update={"data": given.data.model_copy(update={"vocabulary": None})})
    with pytest.raises(Refused, match=r"for numbers, and this client has tokens; data\.vocabulary in the recipe says which"):
        check_data(numbers, organisation)
    fewer = given.model_copy(update={"data": given.data.model_copy(update={"vocabulary": 29})})
    with pytest.raises(Refused, match="for tokens below 29"):
        check_data(fewer, organisation)
    with np.load(paths[1] / "data.npz") as arrays:
        np.savez(paths[1] / "floats.npz", **{name: a.astype(float) if "x" in name else a for name, a in arrays.items()})
    (paths[1] / "floats.npz").replace(paths[1] / "data.npz")
    file = paths[1] / "client.toml"
    file.write_text(file.read_text().replace(":MeanText", ":mlp"))
    with pytest.raises(UserError, match="does not run"):  # on rows of twelve numbers
        load_organisation(file)
    file.write_text(tomli_w.dumps(tomllib.loads(file.read_text()) | {"model": {"hidden": [5]}}))
    with pytest.raises(Refused, match="for tokens, and this client has numbers"):
        check_data(given, load_organisation(file))


def test_a_shared_model_that_takes_no_tokens_is_refused_before_the_run(recipe):
    images = recipe.model_copy(update={"models": recipe.models.model_copy(update={"small": MLP(hidden=(5,))})})
    data = run_recipe(recipe, 4).data
    with pytest.raises(UserError, match=r"MLP\(5\) takes numbers, and the clients' own data has tokens"):
        terms_elsewhere(images, data.shape, data.classes, data.vocabulary)


def test_a_check_of_a_client_tells_that_it_would_refuse_the_recipes_data(recipe, tmp_path):
    path = bring(recipe, tmp_path / "clients", ["MeanText"] * 4)[0][0]
    client = ClientFolder.opened(path)
    found = client.check(recipe)
    assert (
        "a round of FedMRL works" in found.lines[-1]
        and ["small.extractor.embedding.weight", "30×4", "float64"] in found.leaving
    )
    given = run_recipe(recipe, 4)
    numbers = given.model_copy(update={"data": given.data.model_copy(update={"vocabulary": None})})
    with pytest.raises(UserError, match="this client would refuse the recipe: the recipe is for numbers"):
        client.check(numbers)


def test_a_vocabulary_is_for_rows_of_tokens():
    with pytest.raises(UserError, match=r"vocabulary is for rows of tokens, and shape is \[1, 16, 16\]"):
        tiny_recipe(data__name="at-clients", data__shape=[1, 16, 16], data__classes=["a", "b"], data__vocabulary=30)

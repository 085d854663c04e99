"""A federation in which each client brings a model of another kind, against the reference engine."""

import numpy as np
import pytest
from in_process import in_process, same_numbers, simulated
from kinds_of_model import texts
from own_models import bring
from tiny import tiny_recipe

from fedmrl.flower.client_config import load_organisation

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

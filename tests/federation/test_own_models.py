"""Models from Python: the model that is shared beside them, and what does not fit together."""

import numpy as np
import pytest
import torch
from tiny import tiny_recipe
from torch import nn

import fedmrl
from fedmrl import OwnModel, UserError
from fedmrl.federation.setup import prepare
from fedmrl.methods import METHODS

CPU = torch.device("cpu")
SHARING = ["fedapen", "fedkd", "fedmrl", "fml"]


def mlp(inputs, hidden):
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 4))


@pytest.fixture
def vectors(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "v.npz", x=rng.normal(size=(80, 20)), y=np.arange(80) % 4)
    return str(tmp_path / "v.npz")


def shared_of(recipe, models):
    return prepare(recipe, CPU, models).terms.common.small


def test_the_shared_model_is_no_larger_than_the_smallest_of_the_clients_own():
    small, large = OwnModel("small", mlp(256, 9), "3"), OwnModel("large", mlp(256, 200), "3")
    assert shared_of(tiny_recipe("fml"), [large] * 4).label == "CNN(4-8-125-125)"
    chosen = shared_of(tiny_recipe("fml"), [large, small] * 2)
    assert chosen.label == "CNN(1-2-31-31)" and chosen.parameters((1, 16, 16), 4) <= 2353


@pytest.mark.parametrize("method", SHARING)
def test_every_method_runs_with_models_of_ones_own_on_vectors(vectors, method):
    told = []
    models = [OwnModel("net", mlp(20, 12), "3")] * 4
    fedmrl.run(tiny_recipe(method, data__file=vectors, rounds=1), models=models, on_notice=told.append)
    dim = 3 if method == "fedmrl" else 8
    said = f"the model that all clients share is MLP({dim}) with {21 * dim + (dim + 1) * 4} parameters, chosen by the size"
    assert any(line.startswith(said) for line in told), told


@pytest.mark.parametrize("method", sorted(METHODS.keys() - set(SHARING)))
def test_where_no_model_is_shared_none_is_named(method):
    told = []
    fedmrl.run(tiny_recipe(method, rounds=1), models=[OwnModel("net", mlp(256, 6), "3")] * 4, on_notice=told.append)
    assert not any("share" in line for line in told)


def test_a_shared_model_that_the_recipe_names_is_taken_and_not_told(vectors):
    told, models = [], [OwnModel("net", mlp(20, 12), "3")] * 4
    recipe = tiny_recipe("fml", data__file=vectors, rounds=1, models__small={"hidden": [16]})
    assert shared_of(recipe, models).label == "MLP(16)"
    fedmrl.run(recipe, models=models, on_notice=told.append)
    assert not any("share" in line for line in told)


def test_a_d1_above_a_models_representation_is_refused_in_a_sentence_before_anything_is_written(tmp_path):
    models = [OwnModel("wide", mlp(256, 120), "3")] * 3 + [OwnModel("deep", mlp(256, 24), "3")]
    says = r"^method.d1 is 100, more than client 3's representation \(24, model 'deep'\); choose 1 to 24$"
    with pytest.raises(UserError, match=says):
        fedmrl.run(tiny_recipe(method__d1=100), models=models, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()

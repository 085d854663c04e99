"""From a recipe to a run: vectors, models of both kinds, and many clients."""

import json

import numpy as np
import pytest
import torch
from tiny import ALL_METHODS, CNNS, tiny_recipe

import fedmrl
from fedmrl.data.plan import Samples
from fedmrl.federation.setup import prepare, schedule


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Four classes apart in eight features, each feature in a unit of its own and the last the same for all."""
    rng = np.random.default_rng(3)
    y = np.arange(200) % 4
    x = (3 * rng.normal(size=(4, 8))[y] + rng.normal(size=(200, 8)) + 5) * 10.0 ** np.arange(-4, 4)
    x[:, -1] = 7
    path = tmp_path_factory.mktemp("data") / "vectors.npz"
    np.savez(path, x=x, y=y)
    return str(path)


def recipe_on(vectors, method, **settings):
    changes = {"data__file": vectors, "models__local": [{"hidden": [16, 6]}, {"hidden": [8, 6]}], "rounds": 6}
    return tiny_recipe(method, **{**changes, "participation": 1.0, **settings})


@pytest.mark.parametrize("method", ALL_METHODS)
def test_every_method_learns_vectors_with_mlps(vectors, method):
    run = fedmrl.run(recipe_on(vectors, method))
    assert [row.model for row in run.clients] == ["MLP(16-6)", "MLP(8-6)"] * 2
    assert np.mean([row.accuracy for row in run.clients]) > 0.9
    assert all(record.flops > 0 for record in run.records)


def test_each_feature_is_standardised_by_itself(vectors):
    setting = prepare(recipe_on(vectors, "standalone"), torch.device("cpu"))
    x, _ = Samples(setting.data, setting.device, torch.float64).take(np.arange(200))
    torch.testing.assert_close(x.mean(dim=0), torch.zeros(8, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(dim=0, correction=0), torch.tensor([1.0] * 7 + [0.0], dtype=torch.float64))


def test_the_shared_mlp_is_the_smallest_with_its_representation_cut_to_d1(vectors):
    setting = prepare(recipe_on(vectors, "fedmrl"), torch.device("cpu"))
    sent = setting.server_start()
    assert setting.terms.common.small.label == "MLP(8-6)"
    assert sum(tensor.numel() for tensor in sent.values()) == (8 + 1) * 8 + (8 + 1) * 3 + (3 + 1) * 4


def test_mlps_and_cnns_serve_one_federation_on_images(tmp_path):
    recipe = tiny_recipe(models__local=[CNNS[0], {"hidden": [8]}], models__small={"hidden": [16, 5]})
    run = fedmrl.run(recipe, out=tmp_path / "run")
    assert [row.model for row in run.clients] == ["CNN(2-3-8-6)", "MLP(8)"] * 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
    assert fedmrl.run(fedmrl.load_recipe(tmp_path / "run"), out=tmp_path / "run", resume=True).plain() == run.plain()


def test_images_are_augmented_for_mlps_too_and_vectors_are_not(vectors):
    flip = {"training__augment__flip": True}
    assert fedmrl.run(tiny_recipe("standalone", models__local=[{"hidden": [8]}], **flip)).status == "finished"
    with pytest.raises(fedmrl.UserError, match=r"training.augment is for images, and arrays has samples of shape \(8,\)"):
        fedmrl.run(recipe_on(vectors, "standalone", **flip))


def test_where_all_take_part_every_round_lists_everyone():
    assert schedule(tiny_recipe(participation=1.0, rounds=3)) == [[0, 1, 2, 3]] * 3
    assert schedule(tiny_recipe(participation=0.9, rounds=2)) == [[0, 1, 2, 3]] * 2, "it is rounded"

"""Which runs the paper's tables and figures are made of."""

import pytest
from synthetic import cell

from fedmrl import UserError
from fedmrl.config import known_recipes, load_recipe
from fedmrl.methods import METHODS
from fedmrl.reproduce.cells import recipe_hash
from fedmrl.reproduce.experiments import (
    CPU,
    EXPERIMENTS,
    METHOD_ORDER,
    PAPER,
    QUICK,
    best_others,
    dim_variant,
    find,
    paper_results,
    recipe_of,
    run_specs,
    tuned_settings,
)
from fedmrl.reproduce.measurements import Measurements


def names(what, scale=PAPER):
    return [one.name for one in run_specs(what, scale)]


def test_the_heterogeneous_table_has_48_cells_with_three_seeds_at_n100():
    found = run_specs("table-hetero", PAPER)
    assert len(found) == 48
    assert {one.seeds for one in found if "-n100/" in one.name} == {(0, 1, 2)}
    assert {one.seeds for one in found if "-n100/" not in one.name} == {(0,)}
    assert found[0].name.startswith("cifar10-n100/")
    assert all(one.recipe.models.local == "heterogeneous" for one in found)
    assert {one.recipe.rounds for one in found if "-n10/" in one.name} == {100}
    assert {one.recipe.rounds for one in found if "-n10/" not in one.name} == {500}


def test_other_experiments_have_the_paper_s_points():
    assert len(names("table-homo")) == 48
    assert all(one.recipe.models.local == "homogeneous" for one in run_specs("table-homo", PAPER))
    assert names("inference") == ["cifar10-n100/fedmrl", "cifar100-n100/fedmrl"]
    by_classes = {
        one.recipe.partition.classes_per_client for one in run_specs("non-iid-class", PAPER) if "cifar100-" in one.name
    }
    assert by_classes == {10, 30, 50, 70, 90, 100}
    by_alpha = {one.recipe.partition.alpha for one in run_specs("non-iid-dirichlet", PAPER)}
    assert by_alpha == {0.1, 0.2, 0.3, 0.4, 0.5}
    assert all(one.recipe.partition.kind == "dirichlet" for one in run_specs("non-iid-dirichlet", PAPER))
    assert {one.recipe.method.d1 for one in run_specs("d1", PAPER)} == set(range(100, 501, 50))
    assert {one.recipe.method.mrl for one in run_specs("ablation", PAPER)} == {True, False}


@pytest.mark.parametrize("scale", [PAPER, QUICK], ids=lambda scale: scale.name)
def test_all_holds_every_run_once(scale):
    everything = names("all", scale)
    assert len(set(everything)) == len(everything)
    assert set(everything) == {name for what in EXPERIMENTS for name in names(what, scale)}


@pytest.mark.parametrize("scale", [PAPER, QUICK], ids=lambda scale: scale.name)
def test_no_recipe_is_run_under_two_names(scale):
    recipes = [(one.setting, recipe_hash(one.recipe)) for one in run_specs("all", scale)]
    assert len(set(recipes)) == len(recipes)
    assert f"{scale.datasets[0]}-{scale.main}/fedmrl" in names("d1", scale)
    assert dim_variant(scale.dims[0]) not in {one.variant for what in ("d1", "ablation") for one in run_specs(what, scale)}


def test_figures_by_dimension_take_the_plain_run_for_the_dimension_that_it_has():
    recipe = recipe_of(f"digits-{QUICK.main}", "fedmrl", QUICK).resolved()
    plain = cell(f"digits-{QUICK.main}", "fedmrl", recipe=recipe)
    assert Measurements([plain], QUICK).of_dim(plain.setting, QUICK.dims[0]).cells == (plain,)


def test_every_setting_of_the_paper_has_a_recipe_of_its_name():
    for one in run_specs("all", PAPER):
        recipe = load_recipe(f"paper/{one.setting}")
        assert (recipe.clients, recipe.partition, recipe.models) == (
            one.recipe.clients,
            one.recipe.partition,
            one.recipe.models,
        )
    assert sum(name.startswith("authors-code/") for name in known_recipes()) == 12


def test_the_small_version_needs_no_data_that_must_be_fetched():
    for one in run_specs("all", QUICK):
        assert one.recipe.data.name == "digits"
        assert one.seeds == (0,)
        assert round(one.recipe.participation * one.recipe.clients) == 5


def test_what_was_chosen_names_methods_and_keys_that_there_are():
    for dataset, tables in tuned_settings().items():
        assert dataset in PAPER.datasets
        assert set(tables) <= {*METHODS, "all"}
    assert set(METHOD_ORDER) == set(METHODS)


def test_the_printed_values_are_the_paper_s():
    assert paper_results()["heterogeneous"]["cifar10"]["fedmrl"] == [96.63, 95.7, 95.85]
    assert paper_results()["heterogeneous"]["cifar100"]["fedapen"] == [None, None, None]


def test_every_method_has_the_same_optimiser_and_augmentation_and_its_authors_own_weight():
    for dataset in ("cifar10", "cifar100"):
        recipes = {method: recipe_of(f"{dataset}-n100", method, CPU) for method in METHOD_ORDER}
        assert len({(str(one.training), str(one.data), one.clients, one.rounds) for one in recipes.values()}) == 1
        authors = load_recipe(f"authors-code/{dataset}-n100")
        one = recipes["fedmrl"]
        same = ("lr", "momentum", "weight_decay", "clip", "augment")
        assert all(getattr(one.training, key) == getattr(authors.training, key) for key in same)
        assert (one.data.mean, one.data.std) == (authors.data.mean, authors.data.std)
        assert recipes["fedproto"].method.prototype_weight == {"cifar10": 0.1, "cifar100": 1.0}[dataset]
        assert (recipes["fml"].method.alpha, recipes["fml"].method.beta, recipes["fd"].method.gamma) == (0.5, 0.5, 1.0)
        assert recipes["fedmrl"].method.d1 == 100


def test_the_authors_settings_are_theirs():
    first, second = load_recipe("authors-code/cifar10-n100"), load_recipe("authors-code/cifar100-n100")
    for recipe in (first, second):
        training = recipe.training
        assert (training.batch_size, training.momentum, training.weight_decay, training.clip) == (512, 0.9, 1e-3, 50)
        assert (training.augment.flip, training.augment.crop, training.augment.erase) == (True, 4, 0.5)
    assert [mean / 255 for mean in first.data.mean] == pytest.approx([0.485, 0.456, 0.406])
    assert [std / 255 for std in first.data.std] == pytest.approx([0.229, 0.224, 0.225])
    assert [mean / 255 for mean in second.data.mean] == pytest.approx([0.5071, 0.4865, 0.4409])
    assert [std / 255 for std in second.data.std] == pytest.approx([0.2673, 0.2564, 0.2762])


# The scale of two CPU cores


def test_on_a_cpu_real_data_is_trained_on_with_the_smaller_ends_of_the_papers_grid():
    found = run_specs("all", CPU)
    shapes = {(one.setting.split("-")[1], one.recipe.clients, one.recipe.participation) for one in found}
    assert shapes == {("n100", 100, 0.1), ("n50", 50, 0.2), ("n10", 10, 1.0)}
    for one in found:
        training = one.recipe.training
        assert (one.recipe.rounds, training.batch_size, training.precision) == (100, 64, "bf16")
        assert training.epochs == (1 if one.setting.endswith("-n10") else 10) and one.recipe.evaluation.every == 10


BASELINES = {"lg_fedavg": 0.5, "fd": 0.7, "fedproto": 0.6, "fml": 0.8, "fedkd": 0.4, "fedapen": 0.3}


def test_on_a_cpu_stages_come_in_their_order_a_run_for_each_seed():
    fair = {name.replace("_", "-"): value for name, value in BASELINES.items()} | {"fedmrl": 0.2, "standalone": 0.2}
    cells = [cell(main, method, fair=value) for main in ("cifar10-n100", "cifar100-n100") for method, value in fair.items()]
    found = run_specs("all", CPU, cells)
    assert [one.stage for one in found] == sorted(one.stage for one in found) and {len(one.seeds) for one in found} == {1}
    first = [one for one in found if one.stage == 1]
    assert [one.name for one in first] == [f"{data}-n100/{method}" for data in CPU.datasets for method in METHOD_ORDER]
    assert [one.name for one in found if one.stage == 2] == [f"{d}-n100/fedmrl-without-mrl-d1-100" for d in CPU.datasets]
    third = {(one.name, *one.seeds) for one in found if one.stage == 3 and one.name.startswith("cifar10-")}
    assert third == {(f"cifar10-n100/{m}", seed) for m in ("fedmrl", "standalone", "fml", "fd") for seed in (1, 2)}
    assert sum(one.stage < 4 for one in found) == 34


def test_the_two_best_others_are_known_when_all_are_measured():
    cells = [cell("cifar10-n100", name.replace("_", "-"), fair=value) for name, value in BASELINES.items()]
    assert best_others("cifar10-n100", cells) == ["fml", "fd"]
    assert best_others("cifar10-n100", cells[1:]) == [] == best_others("cifar100-n100", cells)


def test_what_is_not_there_is_refused_in_a_sentence():
    with pytest.raises(UserError, match=r"there is no experiment 'tabel-hetero'; did you mean 'table-hetero'\?"):
        find("tabel-hetero", PAPER)
    (one,) = find("cifar10-n100/fedmrl", CPU)
    assert (one.seeds, one.stage) == ((0, 1, 2), 0), "named alone, it is one run with all its seeds"

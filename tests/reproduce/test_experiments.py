"""Which runs the paper's tables and figures are made of."""

import pytest
from synthetic import cell

from fedmrl import UserError
from fedmrl.config import known_recipes, load_recipe
from fedmrl.methods import METHODS
from fedmrl.report.outcomes import Outcomes
from fedmrl.reproduce.cells import hash_of
from fedmrl.reproduce.experiments import (
    EXPERIMENTS,
    METHOD_ORDER,
    PAPER,
    QUICK,
    chosen,
    dim_variant,
    printed,
    recipe_of,
    wanted,
)
from fedmrl.reproduce.search import OWN, find, points, wanted_search


def names(what, scale=PAPER):
    return [one.name for one in wanted(what, scale)]


def test_the_heterogeneous_table_has_48_cells_with_three_seeds_at_n100():
    found = wanted("table-hetero", PAPER)
    assert len(found) == 48
    assert {one.seeds for one in found if "-n100/" in one.name} == {(0, 1, 2)}
    assert {one.seeds for one in found if "-n100/" not in one.name} == {(0,)}
    assert found[0].name.startswith("cifar10-n100/")
    assert all(one.recipe.models.local == "heterogeneous" for one in found)
    assert {one.recipe.rounds for one in found if "-n10/" in one.name} == {100}
    assert {one.recipe.rounds for one in found if "-n10/" not in one.name} == {500}


def test_other_experiments_have_the_paper_s_points():
    assert len(names("table-homo")) == 48
    assert all(one.recipe.models.local == "homogeneous" for one in wanted("table-homo", PAPER))
    assert names("inference") == ["cifar10-n100/fedmrl", "cifar100-n100/fedmrl"]
    by_classes = {one.recipe.partition.classes_per_client for one in wanted("non-iid-class", PAPER) if "cifar100-" in one.name}
    assert by_classes == {10, 30, 50, 70, 90, 100}
    by_alpha = {one.recipe.partition.alpha for one in wanted("non-iid-dirichlet", PAPER)}
    assert by_alpha == {0.1, 0.2, 0.3, 0.4, 0.5}
    assert all(one.recipe.partition.kind == "dirichlet" for one in wanted("non-iid-dirichlet", PAPER))
    assert {one.recipe.method.d1 for one in wanted("d1", PAPER)} == set(range(100, 501, 50))
    assert {one.recipe.method.mrl for one in wanted("ablation", PAPER)} == {True, False}


@pytest.mark.parametrize("scale", [PAPER, QUICK], ids=lambda scale: scale.name)
def test_all_holds_every_run_once(scale):
    everything = names("all", scale)
    assert len(set(everything)) == len(everything)
    assert set(everything) == {name for what in EXPERIMENTS for name in names(what, scale)}


@pytest.mark.parametrize("scale", [PAPER, QUICK], ids=lambda scale: scale.name)
def test_no_recipe_is_run_under_two_names(scale):
    recipes = [(one.setting, hash_of(one.recipe)) for one in wanted("all", scale)]
    assert len(set(recipes)) == len(recipes)
    assert f"{scale.datasets[0]}-{scale.main}/fedmrl" in names("d1", scale)
    assert dim_variant(scale.dims[0]) not in {one.variant for what in ("d1", "ablation") for one in wanted(what, scale)}


def test_figures_by_dimension_take_the_plain_run_for_the_dimension_that_it_has():
    recipe = recipe_of(f"digits-{QUICK.main}", "fedmrl", QUICK).resolved()
    plain = cell(f"digits-{QUICK.main}", "fedmrl", recipe=recipe)
    assert Outcomes([plain], QUICK).of_dim(plain.setting, QUICK.dims[0]).cells == (plain,)


def test_every_setting_of_the_paper_has_a_recipe_of_its_name():
    for one in wanted("all", PAPER):
        recipe = load_recipe(f"paper/{one.setting}")
        assert (recipe.clients, recipe.partition, recipe.models) == (
            one.recipe.clients,
            one.recipe.partition,
            one.recipe.models,
        )
    assert sum(name.startswith("authors-code/") for name in known_recipes()) == 12


def test_the_small_version_needs_no_data_that_must_be_fetched():
    for one in wanted("all", QUICK):
        assert one.recipe.data.name == "digits"
        assert one.seeds == (0,)
        assert round(one.recipe.participation * one.recipe.clients) == 5


def test_what_was_chosen_names_methods_and_keys_that_there_are():
    for dataset, tables in chosen().items():
        assert dataset in PAPER.datasets
        assert set(tables) <= {*METHODS, "all"}
    assert set(METHOD_ORDER) == set(METHODS) == set(OWN)


def test_the_printed_values_are_the_paper_s():
    assert printed()["heterogeneous"]["cifar10"]["fedmrl"] == [96.63, 95.7, 95.85]
    assert printed()["heterogeneous"]["cifar100"]["fedapen"] == [None, None, None]


def test_the_search_makes_the_same_effort_for_every_method():
    assert {len(points(method)) for method in METHOD_ORDER} == {6}
    found = wanted_search(PAPER)
    assert len({one.name for one in found}) == len(found) == 2 * 8 * 6
    assert {one.recipe.rounds for one in found} == {200}
    recipes = [str(one.recipe.resolved()) for one in found]
    assert len(set(recipes)) == len(recipes), "no point is tried twice"


def test_what_is_not_there_is_refused_in_a_sentence():
    with pytest.raises(UserError, match=r"there is no 'tabel-hetero' to reproduce; did you mean 'table-hetero'\?"):
        find("tabel-hetero", PAPER)
    with pytest.raises(UserError, match="leave out --quick"):
        find("search", QUICK)
    assert [one.name for one in find("cifar10-n100-search/fedmrl+d1-500", PAPER)] == ["cifar10-n100-search/fedmrl+d1-500"]

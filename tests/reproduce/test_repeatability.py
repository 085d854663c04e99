"""What is measured again stands beside what is stored."""

import pytest
from synthetic import OLD, cell, diverged
from tiny import tiny_recipe

from fedmrl.reproduce.cells import without_seed, write_cell
from fedmrl.reproduce.experiments import RunSpec
from fedmrl.reproduce.repeatability import repeat_folder, repeatability_rows

RECIPE = tiny_recipe("fedmrl")
SAME = {"recipe": without_seed(RECIPE)}


def rows(folder, seeds=(1,)):
    return list(repeatability_rows([RunSpec("cifar10-n100", "fedmrl", RECIPE, seeds)], folder))


@pytest.fixture
def folder(tmp_path):
    for seed, fair in enumerate((0.5, 0.6, 0.7)):
        write_cell(tmp_path, cell(seed=seed, fair=fair, paper=0.9, **SAME))
    return tmp_path


def test_a_seed_has_both_numbers_their_difference_and_the_spread_over_the_stored_seeds(folder):
    write_cell(repeat_folder(folder), cell(seed=1, fair=0.59, paper=0.91, **SAME))
    assert rows(folder) == [
        ("cifar10-n100/fedmrl", "1", "fair", "60.00", "59.00", "-1.00", "± 10.00 (3 seeds)"),
        ("cifar10-n100/fedmrl", "1", "own", "60.00", "59.00", "-1.00", "± 10.00 (3 seeds)"),
        ("cifar10-n100/fedmrl", "1", "paper", "90.00", "91.00", "+1.00", "± 0.00 (3 seeds)"),
    ]


def test_a_cell_of_another_recipe_is_not_compared_with(folder):
    write_cell(folder, cell(seed=1, fair=0.6, **SAME, **OLD))
    write_cell(repeat_folder(folder), cell(seed=1, fair=0.59, **SAME))
    assert rows(folder)[0][3:] == ("not measured", "59.00", "–", "± 14.14 (2 seeds)")


def test_what_diverged_is_said_and_what_is_not_measured_again_is_left_out(folder):
    write_cell(repeat_folder(folder), diverged(variant="fedmrl", seed=1).model_copy(update=SAME))
    assert [row[3:6] for row in rows(folder, seeds=(1, 2))] == [
        ("60.00", "diverged", "–"),
        ("60.00", "diverged", "–"),
        ("90.00", "diverged", "–"),
    ]

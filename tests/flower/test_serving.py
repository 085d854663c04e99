"""What is checked before a run's first round."""

import pytest
from tiny import tiny_recipe

from fedmrl.errors import UserError
from fedmrl.flower.serving import check_rounds


def test_a_recipe_whose_rounds_ask_fewer_clients_than_min_clients_does_not_begin():
    recipe = tiny_recipe(clients=10, participation=0.1)
    with pytest.raises(UserError, match="a round asks 1 of 10 clients, and min_clients is 2"):
        check_rounds(recipe, 2)
    check_rounds(recipe, 1)


def test_a_recipe_whose_rounds_ask_too_few_clients_for_its_rule_does_not_begin():
    recipe = tiny_recipe(clients=4, participation=1.0, aggregation={"rule": "krum", "byzantine": 1})
    with pytest.raises(UserError, match="krum needs at least 5 clients"):
        check_rounds(recipe, 2)
    check_rounds(recipe.model_copy(update={"clients": 5}), 2)

"""What is checked before a run's first round."""

import json

import pytest
from tiny import tiny_recipe

from fedmrl.errors import UserError
from fedmrl.flower.flower_clients import Joined, Members
from fedmrl.flower.serving import check_rounds, known_members


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


@pytest.fixture
def written(tmp_path):
    """A run's `federation.json`, after a round."""
    members = Members(run="r", clients={3: Joined(name="a", model="m", train=5, test=2, classes={2: 2, 10: 3})})
    file = tmp_path / "federation.json"
    members.write(file)
    (tmp_path / "rounds.jsonl").write_text("{}\n")
    assert known_members(file) == members
    return file


@pytest.mark.parametrize(("before", "after"), [('"train": 5', '"train": 9'), ('"run": "r"', '"run": "s"'), ("sha256", "sha")])
def test_a_list_of_members_that_was_changed_is_not_used(before, after, written):
    text = written.read_text()
    written.write_text(text.replace(before, after))
    assert written.read_text() != text
    with pytest.raises(UserError, match=r"federation\.json is damaged or was changed"):
        known_members(written)


@pytest.mark.parametrize("text", ["[]", "3", json.dumps({"sha256": [1]}), "{"])
def test_a_list_of_members_that_is_none_is_not_used(text, written):
    written.write_text(text)
    with pytest.raises(UserError, match=r"federation\.json"):
        known_members(written)


def test_a_run_with_rounds_does_not_go_on_without_its_list_of_members(written):
    written.unlink()
    with pytest.raises(UserError, match=r"federation\.json is missing.*restore it from a backup"):
        known_members(written)
    (written.parent / "rounds.jsonl").write_text("")
    assert known_members(written) is None

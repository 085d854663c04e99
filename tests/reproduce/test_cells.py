"""A cell says all there is to know of a run, and is read back as it was written."""

import json

import pytest
import torch
from damage import damaged
from tiny import tiny_recipe

import fedmrl
from fedmrl import DivergedRun, UserError
from fedmrl.messages import sha256
from fedmrl.reproduce.cells import by_variant, make_cell, read_cell, read_cells, recipe_hash, write_cell
from fedmrl.results import PROTOCOLS, counted

FACTS = {"command": "fedmrl reproduce tiny-n4/fedmrl --seeds 0", "wall_seconds": 1.5}
DIVERGED = DivergedRun(
    status="diverged", method="fedmrl", title="FedMRL", seed=0, rounds=3, mode="mix-large", view="aggregated", device="a CPU",
    versions={}, diverged={"client": 3, "round": 7, "reason": "loss"},
)  # fmt: skip


@pytest.fixture(scope="module")
def run():
    return fedmrl.run(tiny_recipe("fedmrl", evaluation__every=2))


@pytest.fixture
def cell(run):
    return make_cell("tiny-n4", "fedmrl", run.recipe, run, FACTS)


def test_a_cell_holds_what_the_run_came_to(run, cell):
    summary = run.plain()
    assert cell.status == "finished"
    assert cell.accuracy == summary["accuracy"]
    assert cell.clients.aggregated == [round(row["aggregated_mix-large"], 6) for row in summary["clients"]]
    assert cell.clients.own == [round(row["own_mix-large"], 6) for row in summary["clients"]]
    assert cell.clients.rounds == [row["rounds"] for row in summary["clients"]] and sum(cell.clients.rounds) == 6
    assert cell.states_sha256 == summary["states_sha256"] and len(cell.states_sha256) == 64
    assert cell.clients.classes == [[int(label) for label in row["classes"].split()] for row in summary["clients"]]
    assert cell.curves["all"].rounds == [2, 3]
    assert cell.curves["participants"].rounds == [1, 2, 3]
    assert cell.curves["all"].aggregated[-1] == pytest.approx(cell.accuracy["all"]["aggregated"]["mix-large"]["last"], abs=1e-4)
    assert "seed" not in cell.recipe
    assert cell.recipe["method"]["name"] == "fedmrl"


def test_a_run_names_the_fedmrl_that_it_came_from(cell):
    assert cell.versions["fedmrl"] == fedmrl.__version__


def test_each_protocol_reads_what_it_says(cell):
    assert cell.measured("own") == cell.accuracy["all"]["own"]["mix-large"]["last"]
    assert cell.measured("paper") == cell.accuracy["participants"]["own"]["mix-large"]["best"]
    assert cell.measured("fair") == cell.accuracy["all"]["aggregated"]["mix-large"]["last"]


def test_a_method_that_hears_no_server_has_its_own_view_only():
    run = fedmrl.run(tiny_recipe("standalone"))
    cell = make_cell("tiny-n4", "standalone", run.recipe, run, FACTS)
    assert cell.curves["all"].aggregated is None
    assert cell.measured("fair") == cell.accuracy["all"]["own"]["local"]["last"]


def test_what_was_spent_until_a_target_is_what_the_summary_says():
    targets = [0.3, 0.5, 1.0]
    run = fedmrl.run(tiny_recipe("fedmrl", rounds=6, evaluation__every=1, evaluation__targets=targets))
    cell = make_cell("tiny-n4", "fedmrl", run.recipe, run, FACTS)
    assert cell.spent.turns == [2, 4, 6, 8, 10, 12]
    for protocol in PROTOCOLS:
        asked = counted(protocol, "aggregated")[:2]
        written = [t for t in run.targets if (t.accuracy_of, t.view) == asked]
        found = [cell.cost(protocol, target) for target in targets]
        assert len(written) == len(found) and found[0].reached
        for one, other in zip(found, written, strict=True):
            assert one.model_dump(exclude={"mode"}) == pytest.approx(other.model_dump(exclude={"mode"}))


def test_states_are_hashed_so_that_another_seed_or_one_weight_shows(run, cell):
    assert fedmrl.run(tiny_recipe("fedmrl", evaluation__every=2)).states_sha256 == cell.states_sha256
    assert fedmrl.run(tiny_recipe("fedmrl", evaluation__every=2, seed=1)).states_sha256 != cell.states_sha256
    state = {"weight": torch.ones(3)}
    assert sha256([state]) == sha256([{"weight": torch.ones(3)}]) != sha256([{"weight": torch.ones(3) + 1e-7}])


@pytest.mark.parametrize(("own", "converged"), [(0.26, True), (0.25, False), (0.0, False)])
def test_a_run_that_is_no_better_than_guessing_failed_to_converge(cell, own, converged):
    accuracy = {**cell.accuracy, "all": {**cell.accuracy["all"], "own": {"mix-large": {"last": own, "best": own}}}}
    assert cell.model_copy(update={"accuracy": accuracy}).converged is converged, "the tiny data has four classes"


def test_a_cell_is_valid_as_long_as_what_it_recorded_has_that_value_and_what_it_lacks_its_default(cell):
    recipe = tiny_recipe("fedmrl", evaluation__every=2)
    assert cell.matches(recipe) and cell.matches(recipe.model_copy(update={"seed": 9}))
    table = {key: value for key, value in cell.recipe["training"].items() if key != "weight_decay"}
    older = cell.model_copy(update={"recipe": {**cell.recipe, "training": table}})
    assert older.matches(recipe), "as if weight decay were newer than the cell: it has its default"
    assert not older.matches(tiny_recipe("fedmrl", evaluation__every=2, training__weight_decay=0.1))
    assert not cell.matches(tiny_recipe("fedmrl", evaluation__every=2, training__lr=0.5))
    assert not cell.model_copy(update={"recipe": {**cell.recipe, "gone": 1}}).matches(recipe), "a key that there is no more"
    assert not cell.model_copy(update={"numbers": cell.numbers - 1}).matches(recipe)


def test_a_cell_of_another_format_is_refused_in_a_sentence(cell, tmp_path):
    path = write_cell(tmp_path, cell)
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(UserError, match=r"not a cell of a reproduction \(format"):
        read_cell(path)


def test_cells_are_read_back_as_they_were_written(cell, tmp_path):
    path = write_cell(tmp_path, cell)
    assert path == tmp_path / "cells" / "tiny-n4" / "fedmrl-seed-0.json"
    assert read_cell(path) == cell
    json.loads(path.read_text())
    other = cell.model_copy(update={"seed": 1})
    write_cell(tmp_path, other)
    assert read_cells(tmp_path) == [cell, other]
    assert by_variant(read_cells(tmp_path)) == {("tiny-n4", "fedmrl"): [cell, other]}


def test_a_run_that_diverged_is_a_result():
    recipe = tiny_recipe("fedmrl")
    cell = make_cell("tiny-n4", "fedmrl", recipe, DIVERGED, FACTS)
    assert cell.status == "diverged"
    assert cell.diverged == {"client": 3, "round": 7, "reason": "loss"}
    assert cell.measured("paper") is None
    assert cell.measured("fair") is None


def test_a_hash_is_of_the_recipe_and_not_of_its_seed():
    assert recipe_hash(tiny_recipe(seed=1)) == recipe_hash(tiny_recipe(seed=2))
    assert recipe_hash(tiny_recipe(method__d1=3)) != recipe_hash(tiny_recipe(method__d1=2))


def test_a_hash_is_of_the_numbers_that_fedmrl_gives(monkeypatch):
    before = recipe_hash(tiny_recipe())
    monkeypatch.setattr("fedmrl.reproduce.cells.NUMBERS", -1)
    assert recipe_hash(tiny_recipe()) != before


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"setting": 3}', "\x00"])
def test_a_file_that_is_no_cell_is_refused_in_a_sentence(content, tmp_path):
    path = tmp_path / "cells" / "a" / "b-seed-0.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(UserError, match=r"b-seed-0\.json is not a cell of a reproduction"):
        read_cells(tmp_path)


def test_a_cell_with_a_field_that_is_missing_or_of_another_type_is_refused_in_a_sentence_or_can_be_shown(cell, tmp_path):
    path = write_cell(tmp_path, cell)
    for harm, changed in damaged(json.loads(path.read_text()), ("other", -7, None)):
        path.write_text(json.dumps(changed))
        try:
            read = read_cell(path)
        except UserError as refusal:
            assert len(str(refusal).splitlines()) == 1, harm
            continue
        assert read.clients and read.dataset and None not in map(read.measured, PROTOCOLS), harm
        assert read.curves["all"].own and read.curves["participants"].own, harm


def test_a_cell_under_anothers_name_is_refused(cell, tmp_path):
    path = write_cell(tmp_path, cell)
    path.rename(path.with_name("fedmrl-seed-1.json"))
    with pytest.raises(UserError, match="it belongs to tiny-n4/fedmrl, seed 0"):
        read_cells(tmp_path)


@pytest.mark.parametrize("at", [None, {}, {"client": 1, "round": 2}, {"client": 1, "round": "2", "reason": "why"}])
def test_a_cell_that_diverged_says_where(at, tmp_path):
    path = write_cell(tmp_path, make_cell("tiny-n4", "fedmrl", tiny_recipe("fedmrl"), DIVERGED, FACTS))
    path.write_text(json.dumps({**json.loads(path.read_text()), "diverged": at}))
    with pytest.raises(UserError, match="diverged"):
        read_cell(path)

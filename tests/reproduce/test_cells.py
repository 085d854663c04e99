"""A cell says all there is to know of a run, and is read back as it was written."""

import json

import pytest
from damage import damaged
from tiny import tiny_recipe

import fedmrl
from fedmrl import DivergedError, UserError
from fedmrl.reproduce.cells import by_variant, cell_of, hash_of, read_cell, read_cells, write_cell

FACTS = {
    "command": "fedmrl reproduce tiny-n4/fedmrl --seeds 0", "together": 1, "wall_seconds": 1.5, "device": "a CPU",
    "engine": "reference", "versions": {"torch": "2"},
}  # fmt: skip


@pytest.fixture(scope="module")
def run():
    return fedmrl.run(tiny_recipe("fedmrl", evaluation__every=2))


@pytest.fixture
def cell(run):
    return cell_of("tiny-n4", "fedmrl", run.recipe, run, FACTS)


def test_a_cell_holds_what_the_run_came_to(run, cell):
    summary = run.summary
    assert cell.status == "finished"
    assert cell.accuracy == summary["accuracy"]
    assert cell.targets == summary["targets"]
    assert cell.clients.accuracy == [round(row["accuracy"], 4) for row in summary["clients"]]
    assert cell.clients.classes == [[int(label) for label in row["classes"].split()] for row in summary["clients"]]
    assert cell.curves["all"].rounds == [2, 3]
    assert cell.curves["participants"].rounds == [1, 2, 3]
    assert cell.curves["all"].aggregated[-1] == pytest.approx(cell.accuracy["all"]["aggregated"]["mix-large"]["last"], abs=1e-4)
    assert "seed" not in cell.recipe
    assert cell.recipe["method"]["name"] == "fedmrl"


def test_a_run_names_the_fedmrl_that_it_came_from(cell):
    assert cell.versions["fedmrl"] == fedmrl.__version__


def test_the_two_protocols_read_what_they_say(cell):
    assert cell.measured("paper") == cell.accuracy["participants"]["own"]["mix-large"]["best"]
    assert cell.measured("fair") == cell.accuracy["all"]["aggregated"]["mix-large"]["last"]


def test_a_method_that_hears_no_server_has_its_own_view_only():
    run = fedmrl.run(tiny_recipe("standalone"))
    cell = cell_of("tiny-n4", "standalone", run.recipe, run, FACTS)
    assert cell.curves["all"].aggregated is None
    assert cell.measured("fair") == cell.accuracy["all"]["own"]["local"]["last"]


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
    cell = cell_of("tiny-n4", "fedmrl", recipe, DivergedError(3, 6, "loss"), FACTS)
    assert cell.status == "diverged"
    assert cell.diverged == {"client": 3, "round": 7, "reason": str(DivergedError(3, 6, "loss"))}
    assert cell.measured("paper") is None
    assert cell.measured("fair") is None


def test_a_hash_is_of_the_recipe_and_not_of_its_seed():
    assert hash_of(tiny_recipe(seed=1)) == hash_of(tiny_recipe(seed=2))
    assert hash_of(tiny_recipe(method__d1=3)) != hash_of(tiny_recipe(method__d1=2))


def test_a_hash_is_of_the_numbers_that_fedmrl_gives(monkeypatch):
    before = hash_of(tiny_recipe())
    monkeypatch.setattr("fedmrl.reproduce.cells.NUMBERS", -1)
    assert hash_of(tiny_recipe()) != before


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
        assert read.clients and read.dataset and None not in (read.measured("fair"), read.measured("paper")), harm
        assert read.curves["all"].own and read.curves["participants"].own, harm


def test_a_cell_under_anothers_name_is_refused(cell, tmp_path):
    path = write_cell(tmp_path, cell)
    path.rename(path.with_name("fedmrl-seed-1.json"))
    with pytest.raises(UserError, match="it is of tiny-n4/fedmrl, seed 0"):
        read_cells(tmp_path)


@pytest.mark.parametrize("at", [None, {}, {"client": 1, "round": 2}, {"client": 1, "round": "2", "reason": "why"}])
def test_a_cell_that_diverged_says_where(at, tmp_path):
    path = write_cell(tmp_path, cell_of("tiny-n4", "fedmrl", tiny_recipe("fedmrl"), DivergedError(3, 6, "loss"), FACTS))
    path.write_text(json.dumps({**json.loads(path.read_text()), "diverged": at}))
    with pytest.raises(UserError, match="diverged"):
        read_cell(path)

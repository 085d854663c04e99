"""What a result has beside its numbers: its recipe, and its page."""

import pytest
from tiny import tiny_recipe

import fedmrl
from fedmrl import RunResult, UserError
from fedmrl.results.result import read_outcome


class Mine(fedmrl.Standalone):
    """A method that is not registered."""

    name = "mine"

    strength: float = 1.0


class Impostor(fedmrl.Standalone):
    """A method that is not registered, under the name of one that is."""

    name = "standalone"


@pytest.mark.parametrize("method", [Mine(strength=4.0), Impostor()])
def test_the_recipe_of_a_result_has_the_method_that_was_run(tmp_path, method):
    recipe = tiny_recipe("standalone", rounds=1)
    result = fedmrl.run(recipe, method=method, out=tmp_path / "run")
    assert result.recipe.method is method and result.recipe.rounds == 1
    again = fedmrl.run(recipe, method=method, out=tmp_path / "run", resume=True)
    assert again.recipe.method == method, "of a finished run that is read again, too"


@pytest.mark.parametrize("method", [Mine(strength=4.0), Impostor()])
def test_the_recipe_of_a_result_that_was_read_does_not_name_another_method(tmp_path, method):
    fedmrl.run(tiny_recipe("standalone", rounds=1), method=method, out=tmp_path / "run")
    with pytest.raises(UserError, match=r"in that run method.name came from Python|method.name of that run came from Python"):
        _ = RunResult.read(tmp_path / "run").recipe


def test_the_recipe_of_a_result_that_was_read_is_that_of_its_folder(tmp_path):
    recipe = tiny_recipe("fedmrl", rounds=1)
    fedmrl.run(recipe, out=tmp_path / "run")
    assert RunResult.read(tmp_path / "run").recipe == recipe


def test_a_diverged_run_has_its_recipe_too(tmp_path):
    recipe = tiny_recipe("standalone", rounds=1, training__lr=1e300)
    with pytest.raises(fedmrl.DivergedError):
        fedmrl.run(recipe, out=tmp_path / "run")
    assert read_outcome(tmp_path / "run").recipe == recipe


def test_the_summary_has_the_standardisation_once(tmp_path):
    result = fedmrl.run(tiny_recipe("standalone", rounds=1), out=tmp_path / "run")
    text = (tmp_path / "run" / "summary.json").read_text(encoding="utf-8")
    assert text.count('"mean"') == text.count('"std"') == 1
    assert RunResult.read(tmp_path / "run").preparation == result.preparation


def test_a_result_writes_its_page(tmp_path):
    result = fedmrl.run(tiny_recipe("fedmrl", rounds=1))
    page = result.report(tmp_path / "report.html")
    assert "FedMRL" in page.read_text(encoding="utf-8") and page == tmp_path / "report.html"
    for bad in (tmp_path / "report.txt", tmp_path / "none" / "report.html"):
        with pytest.raises(UserError, match=r"name an .html file in an existing folder"):
            result.report(bad)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]

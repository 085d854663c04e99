"""Tables of several methods: what stands in a row goes together."""

import numpy as np
import pytest
from tiny import tiny_recipe

import fedmrl
from fedmrl.report.page import page_data
from fedmrl.report.runs import make_series
from fedmrl.report.tables import COMPARISON_COLUMNS, why_worst

METHODS = ("fedmrl", "fedproto", "fml", "standalone")


@pytest.fixture(scope="module", params=[[0], [0, 1, 2]], ids=["one seed", "several seeds"])
def comparison(request):
    """After two rounds with one client each some never took part, and are among the worst."""
    return fedmrl.compare(tiny_recipe(participation=0.25, rounds=2), METHODS, seeds=request.param)


def number(words):
    return float(words.split()[0])


def test_the_worst_client_is_not_above_the_mean_in_any_row(comparison):
    assert any(client.rounds == 0 for runs in comparison.outcomes.values() for run in runs for client in run.clients)
    for row in comparison.rows:
        shown = dict(zip(COMPARISON_COLUMNS, row, strict=True))
        assert number(shown["worst client"]) <= number(shown["fair"]), row
    for runs in comparison.plain()["methods"].values():
        assert all(run["worst_client"] <= run["fair"] + 1e-12 for run in runs)


def test_the_table_says_why_the_worst_client_is_so_low(comparison):
    assert comparison.notes[-1].startswith("The worst client of ") and comparison.notes[-1].endswith(" never took part.")
    (run, *_) = comparison["fedmrl"]
    clients = run.clients.model_copy(
        update={"root": [client.model_copy(update={"rounds": 1, "test_samples": 7}) for client in run.clients]}
    )
    assert why_worst([run.model_copy(update={"clients": clients})]) == "has 7 test samples"
    assert why_worst([run, run.model_copy(update={"clients": clients})]) == "never took part or has 7 test samples"
    many = run.clients.model_copy(
        update={"root": [client.model_copy(update={"rounds": 1, "test_samples": 700}) for client in run.clients]}
    )
    assert why_worst([run.model_copy(update={"clients": many})]) == ""


@pytest.mark.parametrize("protocol", ["fair", "own"])
def test_the_worst_client_is_the_lowest_of_those_whose_mean_it_stands_beside(comparison, protocol):
    for runs in comparison.outcomes.values():
        for run in runs:
            of_clients = run.of_clients(protocol)
            assert np.mean(of_clients) == pytest.approx(run.headline(protocol), abs=1e-12)
            assert len(of_clients) == 4 and min(of_clients) <= run.headline(protocol) + 1e-12
            assert protocol == "own" or run.worst_client == min(of_clients)


@pytest.mark.parametrize("protocol", ["fair", "own"])
def test_the_worst_client_is_not_above_the_mean_on_the_page(comparison, protocol):
    cards = page_data(make_series(comparison.results))["answers"][protocol]["cards"]
    assert len(cards) == len(METHODS)
    for card in cards:
        (worst,) = (number(words) for name, words in card["pairs"] if name.startswith("worst client"))
        assert worst <= number(card["value"]), card


def test_the_latex_table_has_the_best_of_each_accuracy_in_bold_and_the_spread_over_seeds(comparison):
    latex = comparison.latex()
    rows = [
        line.removesuffix(r" \\").split(" & ")
        for line in latex.splitlines()
        if line.count(" & ") == len(COMPARISON_COLUMNS) - 1
    ]
    assert rows[0][1] == r"fair (\%)" and [row[0] for row in rows[1:]] == [row[0] for row in comparison.rows]
    for column, words in enumerate(zip(*comparison.rows, strict=True)):
        shown = [row[column] for row in rows[1:]]
        best = max(map(number, words)) if 1 <= column <= 4 else None
        unlike = best is not None and len(set(map(number, words))) > 1
        assert [r"\textbf" in one for one in shown] == [unlike and number(one) == best for one in words]
        assert all((r"{\scriptsize$\pm$\," in one) == ("±" in word) for one, word in zip(shown, words, strict=True))
    assert r"\toprule" in latex and r"\bottomrule" in latex

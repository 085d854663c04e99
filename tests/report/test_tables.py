"""Tables of several methods: what stands in a row goes together."""

import numpy as np
import pytest
from tiny import tiny_recipe

import fedmrl
from fedmrl.report.page import page_data
from fedmrl.report.runs import make_series
from fedmrl.report.tables import COLUMNS

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
        shown = dict(zip(COLUMNS, row, strict=True))
        assert number(shown["worst client"]) <= number(shown["fair"]), row
    for runs in comparison.plain()["methods"].values():
        assert all(run["worst_client"] <= run["fair"] + 1e-12 for run in runs)


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

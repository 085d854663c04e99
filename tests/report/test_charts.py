"""What a chart shows: limits, ticks, labels and rounding, made once for pages and figures."""

import numpy as np
import pytest

from fedmrl.report.charts import MAX_BARS, Curve, difference_chart, line_chart, spread_labels
from fedmrl.report.styles import FALLBACK_STYLES

ONE, OTHER = FALLBACK_STYLES[:2]


def chart(*values, x=(2, 4, 6), **options):
    curves = [Curve(str(place), ONE, x[: len(own[0])], np.array(own)) for place, own in enumerate(values)]
    return line_chart(curves, "label", "round", "accuracy (%)", **options)


def test_a_line_is_the_mean_over_seeds_with_its_range_in_words():
    (line,) = chart([[10.0, 20.0], [20.0, 50.0]]).lines
    assert line.mean == [15, 35] and line.low == [10, 20] and line.high == [20, 50]
    assert line.labels == ["15.0\xa0%", "35.0\xa0%"] and line.spreads == ["(10.0–20.0)", "(20.0–50.0)"]
    assert line.end == "0 35.0\xa0%"


def test_one_seed_has_no_band():
    (line,) = chart([[10.0, 20.0]]).on_page()["lines"]
    assert not {"low", "high", "spreads"} & set(line)


def test_limits_have_room_and_stay_within_0_and_100():
    y = chart([[1.0, 99.5]]).y
    assert (y.low, y.high) == (0, 100)
    y = chart([[50.0, 50.0]]).y
    assert (y.low, y.high) == (48, 52) and [label for _, label in y.ticks] == ["48", "49", "50", "51", "52"]


def test_ticks_of_rounds_are_whole():
    assert [label for _, label in chart([[1.0, 2.0]], x=(1, 2)).x.ticks] == ["1", "2"]


def test_a_value_that_a_line_lacks_is_null_in_the_page():
    page = chart([[10.0, 20.0]], [[10.0, 20.0, 30.0]]).on_page()
    assert page["places"] == [(2, "Round 2"), (4, "Round 4"), (6, "Round 6")]
    assert page["lines"][0]["mean"] == [10, 20, None] and page["lines"][0]["labels"][2] is None


def test_a_chart_without_lines_can_be_drawn():
    assert chart().on_page()["lines"] == []


@pytest.mark.parametrize("values", [[50.0, 50.0, 50.0], [99.0, 98.0, 100.0], [0.0, 100.0, 99.0]])
def test_labels_keep_their_order_and_lie_apart_within_the_limits(values):
    places = spread_labels(values, 0.0, 100.0, 0.1)
    assert np.diff(sorted(places)).min() >= 10 - 1e-9 and min(places) >= 0 and max(places) <= 100
    assert [np.argsort(places).tolist()] == [np.argsort(values, kind="stable").tolist()]


def test_differences_are_sorted_and_ties_are_counted():
    shown = difference_chart("A", "B", ONE, OTHER, np.array([0.0, 12.5, -7.25, 1e-12]))
    assert shown.clients == [1, 0, 3, 2] and shown.counts == (1, 1, 2) and shown.ties == (1, 2)
    page = shown.on_page()
    assert page["labels"] == ["+12.5", "0.0", "0.0", "−7.2"] and page["ties"] == [1, 2, "2 ties"]
    assert page["y"]["title"] == "A − B, points" and page["y"]["ticks"][-1][1] == "+10"


def test_of_very_many_clients_every_so_many_are_drawn_and_all_counted():
    shown = difference_chart("A", "B", ONE, OTHER, np.linspace(-50, 50, 4001))
    assert len(shown.clients) <= MAX_BARS and shown.counts == (2000, 2000, 1)

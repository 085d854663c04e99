"""A method looks the same wherever it is shown, and no two that are shown together look alike."""

from itertools import pairwise

import pytest

from fedmrl.methods import METHODS
from fedmrl.report.looks import LOOKS, OTHERS, SHAPES, Look, Shown, looks_of
from fedmrl.reproduce.figures import STYLES


def contrast(one, other):
    """Of two colours, as web guidelines have it."""

    def luminance(colour):
        shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_method_has_a_look_of_its_own_in_pages_and_figures():
    assert set(LOOKS) == set(METHODS)
    assert {name: (style.colour, style.marker) for name, style in STYLES.items()} == {
        name: (look.light, look.marker) for name, look in LOOKS.items()
    }
    every = [*LOOKS.values(), *OTHERS]
    for of in ("light", "dark", "marker"):
        assert len({getattr(look, of) for look in every}) == len(every)


@pytest.mark.parametrize("look", [*LOOKS.values(), *OTHERS], ids=lambda look: look.marker)
def test_a_line_is_seen_on_light_and_on_dark(look):
    assert contrast(look.light, "#ffffff") >= 3 and contrast(look.dark, "#181c22") >= 3


def test_pages_can_draw_every_marker():
    assert {look.marker for look in (*LOOKS.values(), *OTHERS)} == set(SHAPES)


def test_a_look_does_not_depend_on_who_else_is_shown_nor_in_which_order():
    shown = [Shown("fedproto", "FedProto"), Shown("mine", "Mine"), Shown("fedmrl", "FedMRL")]
    three = looks_of(shown)
    assert three == [looks_of([one])[0] for one in shown] and three[1] in OTHERS


def test_a_users_method_keeps_its_look_whatever_its_series_is_called():
    alone = looks_of([Shown("mine", "Mine")])[0]
    assert looks_of([Shown("mine", "Mine (mu = 1)"), Shown("mine", "Mine (mu = 2)")])[0] == alone


def test_a_users_method_has_its_own_colour_on_light_and_on_dark():
    look = looks_of([Shown("fedmrl", "FedMRL"), Shown("mine", "Mine", "#aa1111")])[1]
    assert (look.light, look.dark) == ("#aa1111", "#aa1111") and isinstance(look, Look)


def test_a_method_that_is_shown_often_has_a_look_for_each_until_they_are_used_up():
    looks = looks_of([Shown("fedmrl", f"FedMRL (d1 = {d1})") for d1 in range(10, 30)])
    assert looks[0] == LOOKS["fedmrl"] and len(set(looks)) == len(LOOKS) + len(OTHERS)
    few = looks_of([Shown("fedmrl", f"FedMRL (d1 = {d1})") for d1 in range(5)])
    assert all(one != other for one, other in pairwise(few)) and set(few[1:]) <= set(OTHERS)

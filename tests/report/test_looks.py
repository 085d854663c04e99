"""A method looks the same wherever it is shown, and no two that are shown together look alike."""

from itertools import pairwise

import pytest

from fedmrl.methods import METHODS
from fedmrl.report.looks import DARK, LIGHT, LOOKS, OTHERS, SHAPES, VISIBLE, Shown, contrast, looks_of
from fedmrl.reproduce.figures import STYLES


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
    assert contrast(look.light, LIGHT) >= VISIBLE and contrast(look.dark, DARK) >= VISIBLE


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
    assert looks_of([Shown("mine", "Mine", "#c04060")])[0].light == "#c04060"
    for colour in ("#000000", "#ffffff", "#aa1111", "#ffff00"):
        look = looks_of([Shown("fedmrl", "FedMRL"), Shown("mine", "Mine", colour)])[1]
        assert contrast(look.light, LIGHT) >= VISIBLE and contrast(look.dark, DARK) >= VISIBLE


def test_two_methods_of_one_colour_do_not_look_alike():
    one, other = looks_of([Shown("one", "One", "#aa1111"), Shown("other", "Other", "#aa1111")])
    assert one.light == "#aa1111" != other.light


def test_a_method_that_is_shown_often_has_a_look_for_each_until_they_are_used_up():
    looks = looks_of([Shown("fedmrl", f"FedMRL (d1 = {d1})") for d1 in range(10, 30)])
    assert looks[0] == LOOKS["fedmrl"] and len(set(looks)) == len(LOOKS) + len(OTHERS)
    few = looks_of([Shown("fedmrl", f"FedMRL (d1 = {d1})") for d1 in range(5)])
    assert all(one != other for one, other in pairwise(few)) and set(few[1:]) <= set(OTHERS)

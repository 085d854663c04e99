"""A method looks the same wherever it is shown, and no two that are shown together look alike."""

from itertools import pairwise

import pytest

from fedmrl.methods import METHODS
from fedmrl.report.styles import (
    DARK_BACKGROUND,
    FALLBACK_STYLES,
    LIGHT_BACKGROUND,
    MARKER_PATHS,
    MIN_CONTRAST,
    STYLES,
    StyleKey,
    choose_styles,
    contrast,
)


def test_every_method_has_a_look_of_its_own_in_pages_and_figures():
    assert set(STYLES) == set(METHODS)
    every = [*STYLES.values(), *FALLBACK_STYLES]
    for of in ("light", "dark", "marker"):
        assert len({getattr(style, of) for style in every}) == len(every)


@pytest.mark.parametrize("style", [*STYLES.values(), *FALLBACK_STYLES], ids=lambda style: style.marker)
def test_a_line_is_seen_on_light_and_on_dark(style):
    assert contrast(style.light, LIGHT_BACKGROUND) >= MIN_CONTRAST and contrast(style.dark, DARK_BACKGROUND) >= MIN_CONTRAST


def test_pages_can_draw_every_marker():
    assert {style.marker for style in (*STYLES.values(), *FALLBACK_STYLES)} == set(MARKER_PATHS)


def test_a_look_does_not_depend_on_who_else_is_shown_nor_in_which_order():
    shown = [StyleKey("fedproto", "FedProto"), StyleKey("mine", "Mine"), StyleKey("fedmrl", "FedMRL")]
    three = choose_styles(shown)
    assert three == [choose_styles([one])[0] for one in shown] and three[1] in FALLBACK_STYLES


def test_a_users_method_keeps_its_look_whatever_its_series_is_called():
    alone = choose_styles([StyleKey("mine", "Mine")])[0]
    assert choose_styles([StyleKey("mine", "Mine (mu = 1)"), StyleKey("mine", "Mine (mu = 2)")])[0] == alone


def test_a_users_method_has_its_own_colour_on_light_and_on_dark():
    assert choose_styles([StyleKey("mine", "Mine", "#c04060")])[0].light == "#c04060"
    for colour in ("#000000", "#ffffff", "#aa1111", "#ffff00"):
        style = choose_styles([StyleKey("fedmrl", "FedMRL"), StyleKey("mine", "Mine", colour)])[1]
        assert contrast(style.light, LIGHT_BACKGROUND) >= MIN_CONTRAST and contrast(style.dark, DARK_BACKGROUND) >= MIN_CONTRAST


def test_two_methods_of_one_colour_do_not_look_alike():
    one, other = choose_styles([StyleKey("one", "One", "#aa1111"), StyleKey("other", "Other", "#aa1111")])
    assert one.light == "#aa1111" != other.light


def test_a_method_that_is_shown_often_has_a_look_for_each_until_they_are_used_up():
    styles = choose_styles([StyleKey("fedmrl", f"FedMRL (d1 = {d1})") for d1 in range(10, 30)])
    assert styles[0] == STYLES["fedmrl"] and len(set(styles)) == len(STYLES) + len(FALLBACK_STYLES)
    few = choose_styles([StyleKey("fedmrl", f"FedMRL (d1 = {d1})") for d1 in range(5)])
    assert all(one != other for one, other in pairwise(few)) and set(few[1:]) <= set(FALLBACK_STYLES)

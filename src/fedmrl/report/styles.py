"""Styles: each method's colours, marker and dash, which are the same on every page and in every figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

Dash = Literal["-", ":"] | tuple[float, tuple[float, ...]]
"""A line style of matplotlib."""

LIGHT_BACKGROUND, DARK_BACKGROUND = "#ffffff", "#181c22"
"""The pages' backgrounds."""
MIN_CONTRAST = 3
"""The contrast to the background that makes a thin line visible."""
DASHED: Dash = (0, (3.5, 1.8))


@dataclass(frozen=True)
class Style:
    """The colours of a line on a light and on a dark background, its marker (matplotlib's name) and its dash in print."""

    light: str
    dark: str
    marker: str
    dash: Dash = "-"

    @property
    def on_page(self) -> dict[str, str]:
        """The style as JSON for the page's script."""
        return {"colour": f"light-dark({self.light}, {self.dark})", "marker": self.marker}


MARKER_PATHS: Mapping[str, str] = {
    "o": "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0 -1 0Z",
    "s": "M-.9-.9H.9V.9H-.9Z",
    "^": "M0-1.15L1.1.8H-1.1Z",
    "D": "M0-1.3L1.15 0L0 1.3L-1.15 0Z",
    "v": "M0 1.15L1.1-.8H-1.1Z",
    "P": "M-.4-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z",
    "X": "M-1.15-.55L-.55-1.15L0-.6L.55-1.15L1.15-.55L.6 0L1.15.55L.55 1.15L0 .6L-.55 1.15L-1.15.55L-.6 0Z",
    "h": "M0-1.2L1.05-.6V.6L0 1.2L-1.05.6V-.6Z",
    "d": "M0-1.35L.75 0L0 1.35L-.75 0Z",
    "p": "M0-1.15L1.1-.35L.68.95H-.68L-1.1-.35Z",
    "<": "M-1.15 0L.8-1.1V1.1Z",
    ">": "M1.15 0L-.8-1.1V1.1Z",
    "*": "M0-1.35L.35-.45L1.3-.4L.55.2L.8 1.1L0 .6L-.8 1.1L-.55.2L-1.3-.4L-.35-.45Z",
}
"""The markers as SVG paths of radius about 1 around the origin."""
# Okabe and Ito's hues, which colour-blind readers can tell apart, adjusted until a thin line is visible on the background.
# Since eight colours are hard to tell apart, markers differ, too, and methods that share a small model are dashed in print.
STYLES: Mapping[str, Style] = {
    "standalone": Style("#000000", "#ffffff", "s", ":"),
    "lg-fedavg": Style("#00946a", "#3fc47e", "^"),
    "fd": Style("#5b2c83", "#a065d0", "v"),
    "fedproto": Style("#0062c4", "#3a8ff0", "D"),
    "fml": Style("#c9549c", "#ff9fc0", "P", DASHED),
    "fedkd": Style("#2e9bd0", "#7edcff", "X", DASHED),
    "fedapen": Style("#c78500", "#f2d04a", "h", DASHED),
    "fedmrl": Style("#cf4a00", "#e8662c", "o"),
}
WITHOUT_MRL = Style("#6b6b6b", "#a3acb7", "d")
FALLBACK_STYLES: Sequence[Style] = (
    Style("#7a4a1e", "#c99b6a", "p"),
    Style("#5f7d00", "#a6cf3a", "<"),
    Style("#8b1a3a", "#ff6b81", ">"),
    Style("#0b6f78", "#4fd0d6", "*"),
    WITHOUT_MRL,
)
"""For users' methods, and for further series of a method that is shown more than once."""


@dataclass(frozen=True)
class StyleKey:
    """The properties of a series that decide its style."""

    method: str
    name: str
    """The name of the series: the method's title and, if needed, the settings that distinguish it."""
    colour: str | None = None
    """The method's own colour, if it has one."""


def choose_styles(series: Sequence[StyleKey]) -> list[Style]:
    """Chooses a style for each series, independent of the order in which they are given.

    Of several series of one method, the first by name gets the method's style: the built-in one, or one of the method's own
    colour. All others get a fallback style, chosen by a hash of their name. When no fallback is left, they get the style of
    a built-in method that is not shown.

    >>> [style.marker for style in choose_styles([StyleKey("standalone", "Standalone"), StyleKey("mine", "Mine", "#aa0000")])]
    ['s', '<']
    """
    by_name = sorted(range(len(series)), key=lambda place: series[place].name)
    chosen: dict[int, Style] = {}
    firsts = {place for place in by_name if place == next(p for p in by_name if series[p].method == series[place].method)}
    for place in by_name:
        one = series[place]
        own = STYLES.get(one.method) or (_custom_style(one.method, one.colour) if one.colour else None)
        if own and place in firsts and own.light not in {style.light for style in chosen.values()}:
            chosen[place] = own
    for place in sorted(by_name, key=lambda place: place not in firsts):
        if place not in chosen:
            rotated = _fallbacks(series[place].method if place in firsts else series[place].name)
            free = [style for style in (*rotated, *STYLES.values()) if style not in chosen.values()]
            chosen[place] = free[0] if free else rotated[0]
    return [chosen[place] for place in range(len(series))]


def _custom_style(method: str, colour: str) -> Style:
    """A style of the user's colour, darkened or lightened until it is visible on each background."""
    return Style(
        _with_contrast(LIGHT_BACKGROUND, colour, "#000000"),
        _with_contrast(DARK_BACKGROUND, colour, "#ffffff"),
        _fallbacks(method)[0].marker,
    )


def _with_contrast(background: str, colour: str, towards: str) -> str:
    mixed, share = colour, 0.0
    while contrast(mixed, background) < MIN_CONTRAST:
        share += 0.05
        channels = zip(_channels(colour), _channels(towards), strict=True)
        mixed = "#" + "".join(f"{round(own + share * (other - own)):02x}" for own, other in channels)
    return mixed


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, as defined by the Web Content Accessibility Guidelines.

    >>> round(contrast("#ffffff", "#000000"))
    21
    """
    low, high = sorted(_luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in (c / 255 for c in _channels(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def _fallbacks(name: str) -> Sequence[Style]:
    """The fallback styles, rotated by a hash of the name."""
    start = crc32(name.encode("utf-8", "replace")) % len(FALLBACK_STYLES)
    return (*FALLBACK_STYLES[start:], *FALLBACK_STYLES[:start])

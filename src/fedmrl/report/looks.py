"""Looks: a method's colour and marker, the same on every page and in every figure, whichever others are shown beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

LIGHT, DARK = "#ffffff", "#181c22"
"""The grounds that pages have."""
VISIBLE = 3
"""The contrast to its ground that a thin line needs."""


@dataclass(frozen=True)
class Look:
    """A colour for light ground and one for dark, and a marker by matplotlib's name."""

    light: str
    dark: str
    marker: str

    @property
    def on_page(self) -> dict[str, str]:
        """As a page's script takes it."""
        return {"colour": f"light-dark({self.light}, {self.dark})", "marker": self.marker}


SHAPES: Mapping[str, str] = {
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
"""The markers as a page draws them, around 0 and about 1 from it."""
# Okabe and Ito's hues, each dark enough on white (and light enough on the dark page) to be seen as a thin line, no two alike
# to the colour-blind; eight are many, so the markers help.
LOOKS: Mapping[str, Look] = {
    "standalone": Look("#000000", "#ffffff", "s"),
    "lg-fedavg": Look("#00946a", "#3fc47e", "^"),
    "fd": Look("#5b2c83", "#a065d0", "v"),
    "fedproto": Look("#0062c4", "#3a8ff0", "D"),
    "fml": Look("#c9549c", "#ff9fc0", "P"),
    "fedkd": Look("#2e9bd0", "#7edcff", "X"),
    "fedapen": Look("#c78500", "#f2d04a", "h"),
    "fedmrl": Look("#cf4a00", "#e8662c", "o"),
}
WITHOUT_MRL = Look("#6b6b6b", "#a3acb7", "d")
OTHERS: Sequence[Look] = (
    Look("#7a4a1e", "#c99b6a", "p"),
    Look("#5f7d00", "#a6cf3a", "<"),
    Look("#8b1a3a", "#ff6b81", ">"),
    Look("#0b6f78", "#4fd0d6", "*"),
    WITHOUT_MRL,
)
"""For what is no method of these: those that users wrote, and a method that is shown a second time with other settings."""


@dataclass(frozen=True)
class Shown:
    """What a look is chosen by."""

    method: str
    name: str
    """What the series is called: the method's title, with what sets it apart from others of the method."""
    colour: str | None = None
    """The method's own, if it has one."""


def looks_of(series: Sequence[Shown]) -> list[Look]:
    """A look for each series.

    The first by name of a method's has the method's look: a method of fedmrl its own, another its colour, or one that no method
    has, by the method's name unless it is taken. Further ones of a method have such a look by their own name. Only when these
    are used up, a look of a method that is not shown is taken.

    >>> [look.marker for look in looks_of([Shown("standalone", "Standalone"), Shown("mine", "Mine", "#aa0000")])]
    ['s', '<']
    """
    by_name = sorted(range(len(series)), key=lambda place: series[place].name)
    chosen: dict[int, Look] = {}
    firsts = {place for place in by_name if place == next(p for p in by_name if series[p].method == series[place].method)}
    for place in by_name:
        one = series[place]
        own = LOOKS.get(one.method) or (_own_look(one.method, one.colour) if one.colour else None)
        if own and place in firsts and own.light not in {look.light for look in chosen.values()}:
            chosen[place] = own
    for place in sorted(by_name, key=lambda place: place not in firsts):
        if place not in chosen:
            turned = _turned(series[place].method if place in firsts else series[place].name)
            free = [look for look in (*turned, *LOOKS.values()) if look not in chosen.values()]
            chosen[place] = free[0] if free else turned[0]
    return [chosen[place] for place in range(len(series))]


def _own_look(method: str, colour: str) -> Look:
    """A look of the user's colour, made lighter for dark ground and darker for light ground until it can be seen there."""
    return Look(_seen_on(LIGHT, colour, "#000000"), _seen_on(DARK, colour, "#ffffff"), _turned(method)[0].marker)


def _seen_on(ground: str, colour: str, towards: str) -> str:
    mixed, share = colour, 0.0
    while contrast(mixed, ground) < VISIBLE:
        share += 0.05
        channels = zip(_channels(colour), _channels(towards), strict=True)
        mixed = "#" + "".join(f"{round(own + share * (other - own)):02x}" for own, other in channels)
    return mixed


def contrast(one: str, other: str) -> float:
    """Of two colours, as the web's accessibility guidelines have it.

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


def _turned(name: str) -> Sequence[Look]:
    """The looks of no method, in an order that depends on the name."""
    start = crc32(name.encode("utf-8", "replace")) % len(OTHERS)
    return (*OTHERS[start:], *OTHERS[:start])

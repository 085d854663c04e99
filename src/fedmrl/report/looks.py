"""Looks: a method's colour and marker, the same on every page and in every figure, whichever others are shown beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True)
class Look:
    """A colour for light ground and one for dark, and a marker by matplotlib's name, whose shape `charts.js` has too."""

    light: str
    dark: str
    marker: str

    @property
    def on_page(self) -> dict[str, str]:
        """As a page's script takes it."""
        return {"colour": f"light-dark({self.light}, {self.dark})", "marker": self.marker}


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


def looks_of(series: Sequence[tuple[str, str]]) -> list[Look]:
    """A look for each series, given as its method and its own name.

    The first by name of a method's has the method's look. The others have one that no method has, by their name alone unless it
    is taken; only when these are used up, one of a method that is not shown.

    >>> [look.marker for look in looks_of([("standalone", "Standalone"), ("fedmrl", "FedMRL"), ("mine", "mine")])]
    ['s', 'o', '<']
    """
    by_name = sorted(range(len(series)), key=lambda place: series[place][1])
    chosen: dict[int, Look] = {}
    for place in by_name:
        own = LOOKS.get(series[place][0])
        if own and own not in chosen.values():
            chosen[place] = own
    for place in by_name:
        if place not in chosen:
            start = crc32(series[place][1].encode("utf-8", "replace")) % len(OTHERS)
            turned = (*OTHERS[start:], *OTHERS[:start])
            free = [look for look in (*turned, *LOOKS.values()) if look not in chosen.values()]
            chosen[place] = free[0] if free else turned[0]
    return [chosen[place] for place in range(len(series))]

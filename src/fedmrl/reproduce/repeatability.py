"""Repeatability: how far a second measurement is from the stored one."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedmrl.reproduce.cells import Cell, read_cells
from fedmrl.reproduce.experiments import RunSpec
from fedmrl.results import PROTOCOLS, Protocol

REPEATABILITY_COLUMNS = ("cell", "seed", "protocol", "stored", "again", "difference", "spread over seeds")


def repeat_folder(folder: Path) -> Path:
    """The folder of repeated runs, separate from the stored ones."""
    return folder / "again"


def repeatability_rows(specs: Iterable[RunSpec], folder: Path) -> Iterator[tuple[str, ...]]:
    """A row for each seed and protocol, in percent; the spread is over the stored seeds."""
    stored, new = read_cells(folder), read_cells(repeat_folder(folder))
    for one in specs:
        before, now = (_of(one, cells) for cells in (stored, new))
        for seed in one.seeds:
            if seed in now:
                yield from (_row(one, seed, protocol, before, now) for protocol in PROTOCOLS)


def _of(one: RunSpec, cells: Iterable[Cell]) -> dict[int, Cell]:
    same = (one.setting, one.variant)
    return {cell.seed: cell for cell in cells if (cell.setting, cell.variant) == same and cell.matches(one.recipe)}


def _row(one: RunSpec, seed: int, protocol: Protocol, before: dict[int, Cell], now: dict[int, Cell]) -> tuple[str, ...]:
    old = before[seed].measured(protocol) if seed in before else None
    new = now[seed].measured(protocol)
    difference = "–" if old is None or new is None else f"{100 * (new - old):+.2f}"
    said = _said(old) if seed in before else "not measured"
    return one.name, str(seed), protocol, said, _said(new), difference, _spread([c.measured(protocol) for c in before.values()])


def _said(accuracy: float | None) -> str:
    return "diverged" if accuracy is None else f"{100 * accuracy:.2f}"


def _spread(accuracies: Sequence[float | None]) -> str:
    found = [100 * accuracy for accuracy in accuracies if accuracy is not None]
    return f"± {np.std(found, ddof=1):.2f} ({len(found)} seeds)" if len(found) > 1 else "–"

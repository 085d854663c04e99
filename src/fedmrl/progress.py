"""Live progress of a run: a bar with the time left and the accuracy on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedmrl.federation.loop import OnRound

_EVERY = 10.0  # seconds between lines where there is no terminal


@contextmanager
def watching(console: Console, label: str, rounds: int) -> Iterator[OnRound]:
    """Inside, what it gives is called with each round's record."""
    if not console.is_terminal:
        yield _lines(console, label, rounds)
        return
    with Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[accuracy]}"),
        console=console,
        speed_estimate_period=3600,  # seconds: rounds may be long, and a time left is wanted after the first two
    ) as bar:
        task = bar.add_task(label, total=rounds, accuracy="")
        describe = Description()

        def on_round(record: Mapping[str, Any]) -> None:
            bar.update(task, completed=record["round"], accuracy=describe.short(record))

        yield on_round


def _lines(console: Console, label: str, rounds: int) -> OnRound:
    started = said = time.monotonic()
    first: int | None = None
    describe = Description()

    def on_round(record: Mapping[str, Any]) -> None:
        nonlocal said, first
        first = record["round"] - 1 if first is None else first
        now, done, said_of_it = time.monotonic(), record["round"], describe(record)
        if now - said >= _EVERY or done == rounds:
            said = now
            left = (now - started) / (done - first) * (rounds - done)
            console.print(f"{label}: round {done}/{rounds}, {said_of_it}, {left:.0f} s left", soft_wrap=True)

    return on_round


class Description:
    """What is known so far, in a few words: all clients' accuracy when they were last evaluated, and this round's clients'."""

    def __init__(self) -> None:
        self._everyone = self._everyone_short = ""

    def short(self, record: Mapping[str, Any]) -> str:
        """The same for a line that also holds a bar, in 80 columns."""
        self(record)
        return f"{_newest(record, 'participants'):.1%} now{self._everyone_short}"

    def __call__(self, record: Mapping[str, Any]) -> str:
        """The words for the newest round."""
        if "all" in record["accuracy"]:
            self._everyone_short = f", {_newest(record, 'all'):.1%} all"
            self._everyone = f"accuracy {_newest(record, 'all'):.1%} (all clients, round {record['round']}), "
        return f"{self._everyone}{_newest(record, 'participants'):.1%} (this round's), loss {record['loss']:.3f}"


def _newest(record: Mapping[str, Any], whose: str) -> float:
    views = record["accuracy"][whose]
    accuracy: float = next(iter(views.get("aggregated", views["own"]).values()))
    return accuracy

"""Live progress of a run: a bar with time left and accuracy on a terminal, else a line every few seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedmrl.federation.server import OnRound
from fedmrl.results import Record, Whose

_EVERY = 10.0  # seconds between lines without a terminal


class Overall:
    """Estimates the time left of several consecutive runs from the mean time of a round."""

    def __init__(self, rounds: int) -> None:
        self._begun, self._ahead, self._seen = time.monotonic(), rounds, 0

    def begin(self, rounds: int) -> None:
        """Starts the next run."""
        self._ahead -= rounds

    def after_this(self) -> float:
        """Seconds for the runs after this one; call once per round."""
        self._seen += 1
        return (time.monotonic() - self._begun) / self._seen * self._ahead


class _TimeLeft:
    """Estimates the time left of one run from its rounds since it started or resumed."""

    def __init__(self, rounds: int) -> None:
        self._rounds, self._started, self._first = rounds, time.monotonic(), -1

    def after(self, done: int) -> float:
        """Seconds left after `done` rounds."""
        self._first = done - 1 if self._first < 0 else self._first
        return (time.monotonic() - self._started) / (done - self._first) * (self._rounds - done)


@contextmanager
def watching(console: Console, label: str, rounds: int, overall: Overall | None = None) -> Iterator[OnRound]:
    """Yields `on_round(record)`, which shows a run's progress, and the time left of all runs if `overall` is given."""
    if overall:
        overall.begin(rounds)
    if not console.is_terminal:
        yield _lines(console, label, rounds, overall)
        return
    with Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=6 if overall else 12),
        MofNCompleteColumn(),
        *([] if overall else [TimeElapsedColumn()]),
        TextColumn("left"),
        TimeRemainingColumn(),
        *([TextColumn("{task.fields[overall]}")] if overall else []),
        TextColumn("{task.fields[accuracy]}"),
        console=console,
        speed_estimate_period=3600,  # seconds, as rounds may be long
    ) as bar:
        task = bar.add_task(label, total=rounds, accuracy="", overall="")
        describe, left = Description(), _TimeLeft(rounds)

        def on_round(record: Record) -> None:
            own = left.after(record.round)
            whole = f"(all {timedelta(seconds=round(own + overall.after_this()))})" if overall else ""
            bar.update(task, completed=record.round, accuracy=describe.short(record), overall=whole)

        yield on_round


def _lines(console: Console, label: str, rounds: int, overall: Overall | None) -> OnRound:
    printed = time.monotonic()
    describe, left = Description(), _TimeLeft(rounds)

    def on_round(record: Record) -> None:
        nonlocal printed
        now, done, description = time.monotonic(), record.round, describe(record)
        own = left.after(done)
        whole = f", {own + overall.after_this():.0f} s for all methods" if overall else ""
        if now - printed >= _EVERY or done == rounds:
            printed = now
            console.print(f"{label}: round {done}/{rounds}, {description}, {own:.0f} s left{whole}", soft_wrap=True)

    return on_round


@contextmanager
def working(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Yields `on_step(label, done, total)`, which shows progress."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=12), TextColumn("left"), TimeRemainingColumn())
    started = printed = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=3600) as bar:
        task = bar.add_task("", total=None)

        def on_step(label: str, done: int, total: int) -> None:
            nonlocal printed
            now = time.monotonic()
            bar.update(task, description=label, completed=done, total=total)
            if not console.is_terminal and done and now - printed >= _EVERY:
                printed = now
                left = (now - started) / done * (total - done)
                console.print(f"{label}: {done / total:.0%} of it all, about {left:.0f} s left", soft_wrap=True)

        yield on_step


class Description:
    """Describes the latest record: last accuracy of all clients, this round's accuracy and loss."""

    def __init__(self) -> None:
        self._everyone = self._everyone_short = ""

    def short(self, record: Record) -> str:
        """A short description, to fit beside a bar in 80 columns."""
        self(record)
        return f"{_newest(record, 'participants')} now{self._everyone_short}"

    def __call__(self, record: Record) -> str:
        """A description of the latest round."""
        if record.accuracy.all is not None:
            self._everyone_short = f", {_newest(record, 'all')} all"
            self._everyone = f"accuracy {_newest(record, 'all')} (all clients, round {record.round}), "
        if record.loss is None:
            return f"{self._everyone}no client replied"
        return f"{self._everyone}{_newest(record, 'participants')} (this round's), loss {record.loss:.3f}"


def _newest(record: Record, whose: Whose) -> str:
    means = record.accuracy[whose]
    return f"{(means.aggregated or means.own).first:.1%}" if means else "–"

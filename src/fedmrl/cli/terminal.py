"""What the command line prints: results on standard output, everything else on standard error."""

import json
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@cache
def out() -> "Console":
    """Standard output."""
    from rich.console import Console

    return Console(highlight=False)


@cache
def err() -> "Console":
    """Standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Prints a line as it is; the terminal wraps it where it ends."""
    out().print(line, soft_wrap=True, markup=False)


def prose(text: str) -> None:
    """Prints a text, wrapped between words."""
    out().print(text, markup=False)


def notice(line: str) -> None:
    """Prints what is worth knowing beside the result."""
    err().print(line, soft_wrap=True, markup=False, style="dim")


def complain(sentence: str) -> None:
    """Prints what went wrong, on one line: a file's name in it may have several."""
    err().print(f"fedmrl: {' '.join(sentence.splitlines())}", soft_wrap=True, markup=False)


def end(sentence: str, code: int) -> NoReturn:
    """Says why the program ends, and ends it."""
    complain(sentence)
    sys.exit(code)


def table(title: str, *columns: str, wraps: str = "") -> "Table":
    """A table in which no number is broken; one column, the one that `wraps`, may be wrapped between words."""
    from rich.table import Table
    from rich.text import Text

    # A title is a line of its own: within the table's width, a narrow table would wrap it.
    made = Table(title=Text(title, no_wrap=True, overflow="ignore"), title_justify="left", title_style="bold")
    made.header_style = "bold"
    for column in columns:
        made.add_column(column, no_wrap=column != wraps, overflow="fold")
    return made


def show(made: "Table") -> None:
    """Prints a table."""
    out().print(made)


def width_of(made: "Table") -> int:
    """The columns of a terminal that a table needs."""
    return out().measure(made, options=out().options.update(width=10_000)).maximum


def print_json(value: Any) -> None:
    """Prints plain data for scripts."""
    print_text(json.dumps(value, indent=2) + "\n")


def print_text(text: str) -> None:
    """Prints a text to the letter."""
    out().file.write(text)

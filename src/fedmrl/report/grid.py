"""Grids: a table with grouped columns, written as Markdown and as LaTeX that needs booktabs and adjustbox."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedmrl.report.tables import ACCURACIES, COLUMNS, DASH, MEANING, Outcomes, costs, markdown, ordered, percent

Mark = Literal["", "best", "second"]

# Text that LaTeX would take for commands, and signs that its older fonts lack.
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "·": r"$\cdot$", "±": r"$\pm$", "−": "$-$",
    "†": r"\dag{}", "×": r"$\times$", "*": r"$^{*}$", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """What stands in a place of the table, with what the paper has there."""

    text: str
    mark: Mark = ""
    aside: str = ""
    aside_mark: Mark = ""
    seeds: str = ""
    """Which seeds it is over, where others in its column have more."""


@dataclass(frozen=True)
class Grid:
    """A table: header rows of texts with the number of columns that each spans, and groups of rows with a line between."""

    caption: str
    corner: str
    header: Sequence[Sequence[tuple[str, int]]]
    groups: Sequence[Sequence[tuple[str, Sequence[Entry]]]]
    notes: Sequence[str] = ()
    best: str = ""
    """What the best of a column is called, where it is marked."""

    @property
    def columns(self) -> int:
        """How many there are, the first with the rows' names aside."""
        return sum(span for _, span in self.header[-1])


def escape(text: str) -> str:
    r"""Text as LaTeX has to have it.

    >>> escape("C=10% ± 2")
    'C=10\\% $\\pm$ 2'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def to_markdown(title: str, grids: Sequence[Grid]) -> str:
    """A page with the grids below each other; grouped columns are named in full, as Markdown has no groups."""
    parts = [f"# {title}\n"]
    for grid in grids:
        rows = [[name, *map(_markdown_entry, entries)] for group in grid.groups for name, entries in group]
        parts.append(f"**{grid.caption}**\n")
        parts.append(markdown([grid.corner, *_flat(grid)], rows))
        if notes := _notes(grid, "italic"):
            parts.append("\n".join(f"- {note}" for note in notes) + "\n")
    return "\n".join(parts)


def _notes(grid: Grid, second: str) -> list[str]:
    return [*([f"{grid.best} of a column bold, second {second}."] if grid.best else []), *grid.notes]


def _flat(grid: Grid) -> list[str]:
    names = [""] * grid.columns
    for row in grid.header:
        spread = [text for text, span in row for _ in range(span)]
        names = [f"{name}<br>{text}" if name and text else name or text for name, text in zip(names, spread, strict=True)]
    return names


def _markdown_entry(entry: Entry) -> str:
    marks = {"": "", "best": "**", "second": "_"}
    shown = f"{marks[entry.mark]}{entry.text}{marks[entry.mark]}" + (f" [{entry.seeds}]" if entry.seeds else "")
    return f"{shown} ({marks[entry.aside_mark]}{entry.aside}{marks[entry.aside_mark]})" if entry.aside else shown


def to_latex(title: str, label: str, grids: Sequence[Grid]) -> str:
    """A float with the grids below each other, never wider than the text."""
    lines = [r"% needs \usepackage{booktabs,adjustbox}", r"\begin{table}[t]", r"\centering", rf"\caption{{{escape(title)}.}}"]
    lines.append(rf"\label{{tab:{label}}}")
    for number, grid in enumerate(grids):
        lines += [r"\par\medskip"] if number else []
        lines += [rf"{{\small {escape(grid.caption)}}}\par\smallskip"] if grid.caption != title else []
        lines += _tabular(grid)
        if notes := _notes(grid, "underlined"):
            lines.append(rf"\par\smallskip{{\footnotesize\raggedright {escape(' '.join(notes))}\par}}")
    return "\n".join([*lines, r"\end{table}", ""])


def _tabular(grid: Grid) -> list[str]:
    lines = [r"\begin{adjustbox}{max width=\linewidth}", rf"\begin{{tabular}}{{@{{}}l{'c' * grid.columns}@{{}}}}", r"\toprule"]
    for number, row in enumerate(grid.header):
        corner = escape(grid.corner) if number == len(grid.header) - 1 else ""
        texts = [rf"\multicolumn{{{span}}}{{c}}{{{escape(text)}}}" if span > 1 else escape(text) for text, span in row]
        lines.append(" & ".join([corner, *texts]) + r" \\")
        lines += _rules(row)
    for group in grid.groups:
        lines.append(r"\midrule")
        lines += [" & ".join([escape(name), *map(_latex_entry, entries)]) + r" \\" for name, entries in group]
    return [*lines, r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}"]


def _rules(row: Sequence[tuple[str, int]]) -> list[str]:
    first, rules = 2, []
    for _, span in row:
        rules += [rf"\cmidrule(lr){{{first}-{first + span - 1}}}"] if span > 1 else []
        first += span
    return ["".join(rules)] if rules else []


def _latex_entry(entry: Entry) -> str:
    shown = _latex_marked(entry.text, entry.mark) + (rf"\,{{\scriptsize[{entry.seeds}]}}" if entry.seeds else "")
    return f"{shown} ({_latex_marked(entry.aside, entry.aside_mark)})" if entry.aside else shown


def _latex_marked(text: str, mark: Mark) -> str:
    # The spread is set small, so that the eye finds the means in a column.
    mean, plus_minus, spread = text.partition(" ± ")
    shown = {"": escape(mean), "best": rf"\textbf{{{escape(mean)}}}", "second": rf"\underline{{{escape(mean)}}}"}[mark]
    return shown + (rf"\,{{\scriptsize$\pm$\,{escape(spread)}}}" if plus_minus else "")


def mark_best(entries: Sequence[Entry], ahead: Sequence[int | None], *, aside: bool = False) -> list[Entry]:
    """Mark the best and the second of a column, given how many are ahead of each; two that are best leave no second.

    >>> [entry.mark for entry in mark_best([Entry("1"), Entry("3"), Entry("–"), Entry("2")], [2, 0, None, 1])]
    ['', 'best', '', 'second']
    """
    marks: Mapping[int | None, Mark] = {0: "best", 1: "second"}
    marked = [(entry, marks.get(count, "")) for entry, count in zip(entries, ahead, strict=True)]
    return [replace(entry, aside_mark=mark) if aside else replace(entry, mark=mark) for entry, mark in marked]


def ahead_of(values: Sequence[float | None], digits: int = 2) -> list[int | None]:
    """How many values are higher than each, as far as so many digits show.

    >>> ahead_of([1.0, 3.0, None, 2.999])
    [2, 0, None, 0]
    """
    known = [None if value is None else float(f"{value:.{digits}f}") for value in values]
    return [None if value is None else sum(other > value for other in known if other is not None) for value in known]


def comparison_grid(titles: Mapping[str, str], outcomes: Outcomes, caption: str) -> Grid:
    """The table of a comparison, the best of each accuracy marked."""
    found = ordered(outcomes)
    columns = []
    for of_run in ACCURACIES.values():
        values = [[of_run(run) for run in runs] for runs in found.values()]
        ahead = ahead_of([100 * float(np.mean(own)) if own else None for own in values], digits=1)
        entries = [Entry(percent(own).removesuffix(" %") if own else DASH) for own in values]
        best: Mark = "best" if any(ahead) else ""  # where all are alike, none is marked
        columns.append([replace(e, mark=best if place == 0 else "") for e, place in zip(entries, ahead, strict=True)])
    for words in zip(*(costs(runs) for runs in found.values()), strict=True):
        columns.append([Entry(word) for word in words])
    header = [(name + (" (%)" if name in ACCURACIES else ""), 1) for name in COLUMNS[1:]]
    rows = [(titles[name], [column[place] for column in columns]) for place, name in enumerate(found)]
    notes = ["Best accuracy of a column bold; ± is the sample standard deviation over seeds, where there are several.", MEANING]
    return Grid(caption, COLUMNS[0], [header], [rows], notes)

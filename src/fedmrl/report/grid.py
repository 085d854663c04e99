"""Grids: a table with grouped columns, written as Markdown and as LaTeX that needs booktabs and adjustbox."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedmrl.report.tables import (
    ACCURACIES,
    COLUMN_NOTES,
    COMPARISON_COLUMNS,
    DASH,
    Outcomes,
    by_accuracy,
    cost_cells,
    markdown,
    mean_percent,
    worst_notes,
)

Mark = Literal["", "best", "second"]

WIDEST_IN_COLUMN = 4
"""The most columns of a LaTeX table that stays in one column of a paper."""

# Characters that are special in LaTeX or missing from its older fonts.
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "·": r"$\cdot$", "±": r"$\pm$", "−": "$-$",
    "†": r"\dag{}", "×": r"$\times$", "*": r"$^{*}$", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """The text of a table's cell, and in brackets (`aside`) the value that the paper prints."""

    text: str
    mark: Mark = ""
    aside: str = ""
    aside_mark: Mark = ""
    seeds: str = ""
    """The seeds behind the value, if others in its column have more."""


@dataclass(frozen=True)
class Grid:
    """A table: header rows, as texts with the number of columns that each spans, and groups of rows separated by lines."""

    caption: str
    corner: str
    header: Sequence[Sequence[tuple[str, int]]]
    groups: Sequence[Sequence[tuple[str, Sequence[Entry]]]]
    notes: Sequence[str] = ()
    best: str = ""
    """The word for the best entry of a column (Best, Least); empty if none is marked."""

    @property
    def columns(self) -> int:
        """The number of columns, without the first, which holds the rows' names."""
        return sum(span for _, span in self.header[-1])


def escape(text: str) -> str:
    r"""Escapes text for LaTeX.

    >>> escape("C=10% ± 2")
    'C=10\\% $\\pm$ 2'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def to_markdown(title: str, grids: Sequence[Grid]) -> str:
    """Writes the grids as Markdown, which has no grouped columns: each column gets its full name."""
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
    """Writes each grid as a LaTeX float, scaled down if it is wider than the text."""
    lines = [r"% needs \usepackage{booktabs,adjustbox}"]
    for number, grid in enumerate(grids, start=1):
        # A wide table spans both columns of a paper that has two.
        float_ = "table*" if grid.columns > WIDEST_IN_COLUMN else "table"
        caption = title if grid.caption == title else f"{title}. {grid.caption}"
        lines += [rf"\begin{{{float_}}}[t]", r"\centering", rf"\caption{{{escape(caption)}.}}"]
        lines += [rf"\label{{tab:{label if len(grids) == 1 else f'{label}-{number}'}}}", *_tabular(grid)]
        if notes := _notes(grid, "underlined"):
            lines.append(rf"\par\smallskip{{\footnotesize\raggedright {escape(' '.join(notes))}\par}}")
        lines.append(rf"\end{{{float_}}}")
    return "\n".join([*lines, ""])


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
    # A small spread makes the means in a column easy to find.
    mean, plus_minus, spread = text.partition(" ± ")
    shown = {"": escape(mean), "best": rf"\textbf{{{escape(mean)}}}", "second": rf"\underline{{{escape(mean)}}}"}[mark]
    return shown + (rf"\,{{\scriptsize$\pm$\,{escape(spread)}}}" if plus_minus else "")


def mark_best(entries: Sequence[Entry], ahead: Sequence[int | None], *, aside: bool = False) -> list[Entry]:
    """Marks the best and the second entry of a column, given how many are ahead of each.

    >>> [entry.mark for entry in mark_best([Entry("1"), Entry("3"), Entry("–"), Entry("2")], [2, 0, None, 1])]
    ['', 'best', '', 'second']
    """
    marks: Mapping[int | None, Mark] = {0: "best", 1: "second"}
    marked = [(entry, marks.get(count, "")) for entry, count in zip(entries, ahead, strict=True)]
    return [replace(entry, aside_mark=mark) if aside else replace(entry, mark=mark) for entry, mark in marked]


def ahead_of(values: Sequence[float | None], digits: int = 2) -> list[int | None]:
    """For each value, the number of higher ones after rounding to `digits`.

    >>> ahead_of([1.0, 3.0, None, 2.999])
    [2, 0, None, 0]
    """
    known = [None if value is None else float(f"{value:.{digits}f}") for value in values]
    return [None if value is None else sum(other > value for other in known if other is not None) for value in known]


def comparison_grid(titles: Mapping[str, str], outcomes: Outcomes, caption: str) -> Grid:
    """The table of a comparison, with the best of each accuracy marked."""
    found = by_accuracy(outcomes)
    columns = []
    for of_run in ACCURACIES.values():
        values = [[of_run(run) for run in runs] for runs in found.values()]
        ahead = ahead_of([100 * float(np.mean(own)) if own else None for own in values], digits=1)
        entries = [Entry(mean_percent(own).removesuffix(" %") if own else DASH) for own in values]
        best: Mark = "best" if any(ahead) else ""  # no mark if all are equal
        columns.append([replace(e, mark=best if place == 0 else "") for e, place in zip(entries, ahead, strict=True)])
    for words in zip(*(cost_cells(runs) for runs in found.values()), strict=True):
        columns.append([Entry(word) for word in words])
    header = [(name + (" (%)" if name in ACCURACIES else ""), 1) for name in COMPARISON_COLUMNS[1:]]
    rows = [(titles[name], [column[place] for column in columns]) for place, name in enumerate(found)]
    notes = [
        "Best accuracy of a column bold; ± is the sample standard deviation over seeds, where there are several.",
        *COLUMN_NOTES,
        *worst_notes(titles, outcomes),
    ]
    return Grid(caption, COMPARISON_COLUMNS[0], [header], [rows], notes)

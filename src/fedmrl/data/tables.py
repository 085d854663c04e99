"""Tables: columns of numbers and of words as arrays, and CSV and Parquet files as columns."""

import csv
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrl.data.preparation import Column
from fedmrl.data.raw import Columns, as_float, label_in, missing
from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.memory import check_room

_MOST_WORDS = 20
"""A column with more different words than this is refused, as one-hot would make a number for each."""
_ABSENT = {"", "na", "n/a", "nan", "null", "none", "?"}
"""What stands in a CSV file for a value that is missing, in small letters."""


_BYTES_PER_CHARACTER, _BYTES_PER_VALUE = 10, 48
"""The memory that reading takes for each character of a CSV file, and for each value of a Parquet file: Python's objects."""


def in_order(found: Any, columns: Sequence[Column], where: str) -> Columns:
    """The columns of a later input as these, by name; an array has them in order."""
    if isinstance(found, dict):
        if absent := [column.name for column in columns if column.name not in found]:
            raise UserError(f"{where} has no column {absent[0]!r}; it needs {len(columns)} columns, as in training")
        return {column.name: found[column.name] for column in columns}
    table = np.asarray(found)
    if table.ndim != 2 or table.shape[1] != len(columns):
        raise UserError(f"{where} has shape {list(table.shape)}; it must have a row for each sample and {len(columns)} columns")
    return {column.name: table[:, place] for place, column in enumerate(columns)}


def fitted(tables: Sequence[Columns], where: Sequence[str]) -> list[Column]:
    """How each column of these tables becomes numbers: those of several clients together, of which each has all columns."""
    names = list(tables[0])
    for table, place in zip(tables, where, strict=True):
        if differing := [*(name for name in names if name not in table), *(name for name in table if name not in names)]:
            has, lacks = (place, where[0]) if differing[0] in table else (where[0], place)
            raise UserError(f"{has} has a column {differing[0]!r}, and {lacks} has none; all need the same columns")
    return [_column(name, [table[name] for table in tables], where) for name in names]


def _column(name: str, values: Sequence[NDArray[Any]], where: Sequence[str]) -> Column:
    words: set[str] = set()
    for part, place in zip(values, where, strict=True):
        words |= _words(part, f"{place}: column {name!r}")
    if not words:
        return Column(name=name)
    numbers = next((p for part, p in zip(values, where, strict=True) if not _words(part, name) and not _empty(part)), None)
    if numbers is not None:
        raise UserError(
            f"{numbers}: column {name!r} has numbers, and elsewhere words such as {min(words)!r:.40}; make it alike"
        )
    if len(words) > _MOST_WORDS:
        raise UserError(
            f"{where[0]}: column {name!r} has {len(words)} different words, more than {_MOST_WORDS}; leave it out, or turn it "
            "into numbers"
        )
    return Column(name=name, words=sorted(words))


def _empty(values: NDArray[Any]) -> bool:
    return values.dtype.kind not in "biu" and all(missing(value) for value in values.tolist())


def _words(values: NDArray[Any], where: str) -> set[str]:
    """The words in a column; none if it has numbers."""
    if values.dtype.kind in "biuf":
        return set()
    if values.dtype.kind not in "OUS":
        raise UserError(f"{where} is of type {values.dtype}, neither numbers nor words; leave it out, or turn it into numbers")
    there = [value for value in values.tolist() if not missing(value)]
    if all(isinstance(value, int | float) or _is_decimal(value) for value in there):
        return set()
    if odd := [value for value in there if not isinstance(value, str)]:
        mixed = "words and numbers" if isinstance(odd[0], int | float) else f"values of type {type(odd[0]).__name__}"
        raise UserError(f"{where} has {mixed}; leave it out, or make it numbers or words")
    return {str(value) for value in there}


def _is_decimal(value: Any) -> bool:
    return type(value).__name__ == "Decimal"


def encoded(columns: Columns, spec: Sequence[Column], where: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The columns as one array of numbers, and which of them are missing, where the array has 0."""
    blocks, gaps = [], []
    for column in spec:
        name = f"{where}: column {column.name!r}"
        values = columns[column.name]
        found, absent = _numbers(values, name) if column.words is None else _one_hot(values, column.words, name)
        blocks.append(found)
        gaps.append(absent)
    return np.concatenate(blocks, axis=1), np.concatenate(gaps, axis=1)


def _numbers(values: NDArray[Any], where: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if values.ndim != 1:
        raise UserError(f"{where} has several numbers for each sample; give one")
    if words := _words(values, where):
        raise UserError(f"{where} has words such as {min(words)!r:.40}, and must have numbers")
    plain = [math.nan if missing(value) else as_float(value) for value in values.tolist()]
    found = np.array(plain, dtype=np.float64)
    if np.isinf(found).any() or (np.abs(found[~np.isnan(found)]) > np.finfo(np.float32).max).any():
        raise UserError(f"{where} has values that are infinite or too large; leave them out")
    absent = np.isnan(found)
    return np.where(absent, 0.0, found)[:, None], absent[:, None]


def _one_hot(values: NDArray[Any], words: Sequence[str], where: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    places = {word: place for place, word in enumerate(words)}
    found = np.zeros((len(values), len(words)))
    for row, value in enumerate(values.tolist()):
        if missing(value):
            continue
        if str(value) not in places:
            known = ", ".join(map(repr, words[:5])) + (" …" if len(words) > 5 else "")
            raise UserError(f"{where} has {str(value)!r:.40}, which the training data has not; it knows {known}")
        found[row, places[str(value)]] = 1
    return found, np.zeros_like(found, dtype=np.bool_)


def said(spec: Sequence[Column], gaps: NDArray[np.bool_], where: str) -> tuple[str, ...]:
    """Notices on the columns that were not numbers in every row; raises `UserError` for one that has none at all."""
    place, filled, hot = 0, [], []
    for column in spec:
        if column.words is None and (count := int(gaps[:, place].sum())):
            if count == len(gaps):
                raise UserError(f"{where}: column {column.name!r} has no values; leave it out")
            filled.append(f"{column.name} ({count})")
        elif column.words is not None:
            hot.append(f"{column.name} ({len(column.words)})")
        place += len(column.words or [""])
    lines = []
    if filled:
        lines.append(f"missing numbers become the mean of the training data, in the columns {_listed(filled)}")
    if hot:
        lines.append(f"words become one number for each word, in the columns {_listed(hot)}")
    return tuple(lines)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def read_csv(path: Path, label: str | None = None) -> Columns:
    """The columns of a CSV file with a header; columns whose values are all numbers are numbers.

    `label` is the column of the labels, if it is not called so.
    """
    check_room(str(path), _BYTES_PER_CHARACTER * path.stat().st_size)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            start = file.readline()
            file.seek(0)
            delimiter = max(",;\t", key=start.count)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            numbered = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8; save it as CSV in UTF-8") from error
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file ({error})") from error
    if len(numbered) < 2:
        raise UserError(f"{path} has no rows; it needs a header and a row for each sample")
    (_, names), *rows = numbered
    for number, row in rows:
        if len(row) != len(names):
            raise UserError(f"{path}: line {number} has {len(row)} values, and the header {len(names)}; each needs as many")
        if any("\0" in cell for cell in row):
            raise UserError(f"{path}: line {number} has a null byte; save the file as CSV in UTF-8")
    if len(set(names)) < len(names) or "" in names:
        wrong = next(name for name in names if not name or names.count(name) > 1)
        raise UserError(f"{path} has a column without a name; name it" if not wrong else f"{path} has two columns {wrong!r}")
    of_labels = label_in(names, label)
    columns = zip(names, zip(*(row for _, row in rows), strict=True), strict=True)
    return {name: _parsed(cells, name == of_labels) for name, cells in columns}


def _parsed(cells: Iterable[str], labels: bool) -> NDArray[Any]:
    cells = list(cells)
    values: list[Any] = [None if cell.lower() in _ABSENT else cell for cell in cells]
    there = [value for value in values if value is not None]
    numbers = _as_numbers(there)
    if numbers is not None:
        of_there = iter(numbers)
        values = [None if value is None else next(of_there) for value in values]
    if labels and (numbers is None or not there):  # a class of words may be called "none" or "?"
        values = [cell or None for cell in cells]
    if numbers and len(there) == len(values):
        try:
            return np.array(values, dtype=np.int64 if isinstance(values[0], int) else np.float64)
        except OverflowError:
            return np.array([as_float(value) for value in values])
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _as_numbers(cells: Sequence[str]) -> list[int] | list[float] | None:
    """Cells as whole numbers or floats; None if some are words."""
    if any("_" in cell for cell in cells):  # Python takes 1_0 for 10, and in a file it is a code
        return None
    for kind in (int, float):
        with suppress(ValueError):
            return [kind(cell) for cell in cells]
    return None


def read_parquet(path: Path) -> Columns:
    """The columns of a Parquet file."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError("Parquet files need the package pyarrow; install it with: pip install 'fedmrl[tables]'") from error
    from fedmrl.data.raw import stacked

    try:
        about = parquet.read_metadata(path)
        groups = [about.row_group(place) for place in range(about.num_row_groups)]
        values = sum(group.column(place).num_values for group in groups for place in range(group.num_columns))
        check_room(str(path), _BYTES_PER_VALUE * values)
        table = parquet.read_table(path)
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
    except UserError:
        raise
    except CODE_FAILS as error:
        raise UserError(f"{path} cannot be read as a Parquet file ({cause(error)})") from error
    if not columns or not len(next(iter(columns.values()))):
        raise UserError(f"{path} has no rows; it needs a row for each sample")
    return {name: stacked(values, f"{path}: column {name!r}") for name, values in columns.items()}

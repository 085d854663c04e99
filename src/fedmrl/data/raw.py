"""A user's input as plain arrays: tuples, torch Datasets, DataFrames, mappings of columns, files, and fedmrl's own datasets."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from fedmrl.data.preparation import few
from fedmrl.data.sources import Dataset
from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.guard import is_line

Columns = dict[str, NDArray[Any]]
"""A table's columns by name, each with one value for each sample."""
Size = tuple[int, int]
"""The height and width that images are scaled to."""

_LABELS = ("label", "labels")
"""The columns that hold the labels, if the user names none."""
TESTS = ("test", "validation", "valid", "val")
"""What a test set may be called beside `train`, the first choice first."""


@dataclass(frozen=True)
class Raw:
    """Inputs and labels as they came: an array or a table's columns, and an array of words, numbers or booleans."""

    x: NDArray[Any] | Columns
    y: NDArray[Any]
    label: str | None = None
    """The label's column."""
    classes: tuple[Any, ...] | None = None
    """All classes in order, if the data names them; some may have no samples."""
    notices: tuple[str, ...] = ()
    scaled: bool = False
    """Whether these are images that were scaled to the size asked for."""


@dataclass(frozen=True)
class Part:
    """One client's data, or that of all: training samples, and test samples if they were given apart."""

    train: Raw
    test: Raw | None = None


def parts(given: Any, where: str, label: str | None = None, size: Size | None = None) -> Part:
    """Reads data with labels, in any form; `where` names it in errors."""
    if isinstance(given, Mapping) and "train" in given:
        return train_and_test(given, where, label, size)
    if isinstance(given, str | Path):
        from fedmrl.data.files import read_file

        return read_file(Path(given), label, size)
    if isinstance(given, Dataset):
        return _of_dataset(given)
    if isinstance(given, tuple) or (isinstance(given, Mapping) and {"x", "y"} <= given.keys()):
        return of_arrays(_named(given, where), where)
    if isinstance(given, TorchDataset | DataLoader):
        return Part(_of_torch(given, where, label))
    return Part(_of_frame(given, where, label))


def _of_frame(given: Any, where: str, label: str | None) -> Raw:
    if (columns := _columns(given, where)) is not None:
        return of_columns(columns, label, where)
    if isinstance(given, np.ndarray | torch.Tensor | list):
        raise UserError(
            f"{where} is {_described(given)} without labels; give a tuple (x, y), or a list with the data of each client"
        )
    raise UserError(
        f"{where} is {_described(given)}; give (x, y), a torch Dataset, a DataFrame, a mapping of columns, a file, or a list "
        "with one of these for each client"
    )


def inputs(given: Any, where: str, label: str | None = None, size: Size | None = None) -> NDArray[Any] | Columns:
    """Reads inputs in any form, without their labels."""
    if isinstance(given, str | Path):
        from fedmrl.data.files import read_inputs

        return read_inputs(Path(given), label, size)
    if isinstance(given, Dataset):
        return given.x
    if isinstance(given, Mapping) and "x" in given:
        given = given["x"]
    elif isinstance(given, tuple) and len(given) in (2, 4) and not _is_scalar(given[0]):
        given = given[0]
    if isinstance(given, TorchDataset | DataLoader):
        given = [item[0] if isinstance(item, tuple | list) else item for item in _items(given, where)]
    if isinstance(given, list) and given and isinstance(given[0], Mapping):
        given = _turned(given, where)
    if (columns := _columns(given, where)) is not None:
        return _only_inputs(columns, label, where)
    if not isinstance(given, np.ndarray | torch.Tensor | Sequence) or isinstance(given, bytes):
        raise UserError(f"{where} is {_described(given)}; give an array, a DataFrame, a mapping of columns or a file")
    return stacked(given, where)


def train_and_test(given: Mapping[str, Any], where: str, label: str | None, size: Size | None) -> Part:
    """Reads what is given as `train` and under one of the names of a test set."""
    tests = [name for name in TESTS if name in given]
    if unknown := [name for name in given if name != "train" and name not in TESTS]:
        raise UserError(f"{where} has {unknown[0]!r} beside 'train'; it may have 'train' and 'test'")
    found = [parts(given[name], f"{where}[{name!r}]", label, size) for name in ("train", *tests[:1])]
    if any(part.test is not None for part in found) and len(found) > 1:
        raise UserError(f"{where} has a test set beside 'train' and another within; give one")
    unused = tuple(f"{where}[{name!r}] is not used, as {tests[0]!r} is the test set" for name in tests[1:])
    train = replace(found[0].train, notices=(*found[0].train.notices, *unused))
    return Part(train, found[1].train if len(found) > 1 else found[0].test)


def _of_dataset(data: Dataset) -> Part:
    values = np.array(data.preparation.classes, dtype=object)
    columns = tuple(values.tolist())
    cut = data.official_train
    halves = [Raw(data.x[part], values[data.y[part]], classes=columns) for part in (slice(cut), slice(cut, None))]
    return Part(halves[0], halves[1] if cut < len(data.y) else None)


def _named(given: tuple[Any, ...] | Mapping[str, Any], where: str) -> dict[str, Any]:
    """Arrays by name; a tuple has x and y, and then perhaps x_test and y_test."""
    if isinstance(given, Mapping):
        return dict(given)
    if len(given) not in (2, 4):
        raise UserError(f"{where} is a tuple of {len(given)}; give (x, y), or (x, y, x_test, y_test)")
    return dict(zip(("x", "y", "x_test", "y_test"), given, strict=False))


def of_arrays(arrays: Mapping[str, Any], where: str) -> Part:
    """Arrays x and y, with x_test and y_test if there are any; x may be a table, too."""
    arrays = {{"test_x": "x_test", "test_y": "y_test"}.get(name, name): array for name, array in arrays.items()}
    if absent := [name for name in ("x", "y") if name not in arrays]:
        raise UserError(f"{where} has no array {absent[0]!r} (it has {', '.join(arrays) or 'none'}); save it with x=…, y=…")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise UserError(f"{where} has only one of x_test and y_test; give both or neither")
    found = []
    for suffix in ("", "_test") if "x_test" in arrays else ("",):
        x, name = arrays[f"x{suffix}"], f"{where}: x{suffix}"
        columns = _columns(x, name)
        if columns is not None:
            _check_names(columns, name)
        values = of_inputs(columns, name) if columns is not None else stacked(x, name)
        found.append(_pair(values, stacked(arrays[f"y{suffix}"], f"{where}: y{suffix}"), where, suffix))
    return Part(found[0], found[1] if len(found) > 1 else None)


def _pair(x: NDArray[Any] | Columns, y: NDArray[Any], where: str, suffix: str = "", label: str | None = None) -> Raw:
    count = len(x) if isinstance(x, np.ndarray) and x.ndim else len(next(iter(x.values()), ())) if isinstance(x, dict) else -1
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or count != len(y) or not count:
        shape = x.shape if isinstance(x, np.ndarray) else (count,)
        raise UserError(f"{where}: y{suffix} must have one label for each sample: x{suffix} is {shape}, y{suffix} {y.shape}")
    return Raw(x, y, label)


def _columns(given: Any, where: str) -> Columns | None:
    """The columns of a DataFrame, a mapping or a Hugging Face dataset; None for anything else."""
    try:
        if _is_frame(given):
            names = [str(name) for name in given.columns]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise UserError(f"{where} has two columns {twice!r}; rename one")
            return {name: given.iloc[:, place].to_numpy() for place, name in enumerate(names)}
        if isinstance(given, Mapping):
            if not given:
                raise UserError(f"{where} is an empty mapping; give its columns")
            return {str(name): _column(values, f"{where}: column {name!r}") for name, values in given.items()}
        if hasattr(given, "column_names") and hasattr(given, "__getitem__"):  # a Hugging Face dataset
            names = list(given.column_names)
            return {name: _column(given[name], f"{where}: column {name!r}") for name in names}
    except UserError:
        raise
    except CODE_FAILS as error:
        raise UserError(f"{where} cannot be read ({cause(error)})") from error
    return None


def _is_frame(given: Any) -> bool:
    """Whether this is a pandas DataFrame; pandas is imported only by those who make one."""
    return type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns") and hasattr(given, "iloc")


def _column(values: Any, where: str) -> NDArray[Any]:
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise UserError(f"{where} is {_described(values)}; it must have a value for each sample")
    return stacked(values, where)


def of_columns(columns: Columns, label: str | None, where: str) -> Raw:
    """Inputs and labels of a table, whose label column is `label`, or else called so."""
    if label is not None and not isinstance(label, str):
        raise UserError(f"label is {label!r:.80}; it must name the column of the labels")
    name = label_in(columns, label)
    if name not in columns:
        asked = "name the column of the labels as label" if label is None else f"there is no column {label!r} for the labels"
        raise UserError(f"{where}: {asked}; its columns are {few(columns)}")
    if len(columns) < 2:
        raise UserError(f"{where} has no column beside the labels; there is nothing to learn from")
    _check_names(columns, where)
    _same_lengths(columns, where)
    return _pair(_only_inputs(columns, name, where), columns[name], where, label=name)


def label_in(names: Iterable[str], label: str | None) -> str | None:
    """The column of the labels: the one that the user names, or else one that is called so."""
    return label if label is not None else next((name for name in _LABELS if name in names), None)


def _check_names(columns: Columns, where: str) -> None:
    # Names go into notices, and from there into recipes that 'fedmrl init' writes.
    if wrong := [name for name in columns if not is_line(name)]:
        raise UserError(f"{where} has a column {wrong[0]!r:.40}; its name must be a line of text")


def _only_inputs(columns: Columns, label: str | None, where: str) -> NDArray[Any] | Columns:
    """The columns without the labels; a single one with several numbers for each sample is an array."""
    ignored = [label] if label is not None else list(_LABELS)
    return of_inputs({name: values for name, values in columns.items() if name not in ignored}, where)


def of_inputs(columns: Columns, where: str) -> NDArray[Any] | Columns:
    """A table's columns, or the array that is its only column."""
    _same_lengths(columns, where)
    wide = [name for name, values in columns.items() if values.ndim > 1]
    if not wide:
        return columns
    if len(columns) > 1:
        raise UserError(
            f"{where}: column {wide[0]!r} has several numbers for each sample, and there are others beside it "
            f"({few(name for name in columns if name != wide[0])}); keep one input column"
        )
    return columns[wide[0]]


def _same_lengths(columns: Columns, where: str) -> None:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        (first, most), (other, fewer) = sorted(lengths.items(), key=lambda pair: -pair[1])[:: len(lengths) - 1]
        raise UserError(f"{where}: column {first!r} has {most} values and {other!r} {fewer}; they must be as many")


def _of_torch(given: Any, where: str, label: str | None) -> Raw:
    found = _items(given, where)
    if isinstance(found[0], Mapping):
        return of_columns(_turned(found, where), label, where)
    for number, item in enumerate(found):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UserError(f"{where}: item {number} is {_described(item)}; it must be a pair (x, y) or a mapping")
    return _pair(stacked([x for x, _ in found], f"{where}: x"), stacked([y for _, y in found], f"{where}: y"), where)


def _items(given: Any, where: str) -> list[Any]:
    """The items of a map-style torch Dataset."""
    if isinstance(given, IterableDataset | DataLoader) or not hasattr(given, "__len__"):
        what = "a DataLoader" if isinstance(given, DataLoader) else "a torch Dataset without a length"
        raise UserError(f"{where} is {what}; give a Dataset that knows its length and takes an index")
    found, number = [], 0
    try:
        for number in range(len(given)):
            found.append(given[number])
    except CODE_FAILS as error:
        raise UserError(f"{where}: item {number} fails ({cause(error)}); fix the Dataset") from error
    if not found:
        raise UserError(f"{where} is empty; give some samples")
    return found


def _turned(rows: Sequence[Any], where: str) -> Columns:
    """Rows as columns."""
    names = list(rows[0])
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or set(row) != set(names):
            has = f"has {few(row)}" if isinstance(row, Mapping) else f"is {_described(row)}"
            raise UserError(f"{where}: item {number} {has}, and the first has {few(names)}; all must have the same")
    return {str(name): stacked([row[name] for row in rows], f"{where}: {name!r}") for name in names}


def stacked(values: Any, where: str) -> NDArray[Any]:
    """Values as one array, the first axis of which counts the samples; words and mixed values stay objects."""
    try:
        if isinstance(values, np.ndarray | torch.Tensor) or _is_image(values) or _is_frame(values):
            return _array(values.to_numpy() if _is_frame(values) else values)
        listed = list(values.array if hasattr(values, "array") and _of_pandas(values) else values)
        if not listed:
            raise UserError(f"{where} is empty; give some samples")
        if all(_is_scalar(value) for value in listed):
            return _typed(listed)
        arrays = [_array(value) for value in listed]
    except UserError:
        raise
    except CODE_FAILS as error:
        raise UserError(f"{where} is {_described(values)}, which cannot be read as an array ({cause(error)})") from error
    for number, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise UserError(
                f"{where}: sample {number} has shape {list(array.shape)}, and the first has {list(arrays[0].shape)}; "
                "all samples must have the same shape"
            )
    return np.stack(arrays)


def _typed(listed: list[Any]) -> NDArray[Any]:
    """Scalars as an array of their common type, if they have one."""
    kinds = {type(value) for value in listed}
    if (
        kinds <= {bool, np.bool_}
        or (kinds <= {int, float} and bool not in kinds)
        or all(issubclass(k, np.number) for k in kinds)
    ):
        made = np.array(listed)
        if made.dtype.kind in "biuf":
            return made
    found = np.empty(len(listed), dtype=object)
    found[:] = [value.item() if isinstance(value, torch.Tensor | np.generic) else value for value in listed]
    return _typed(found.tolist()) if kinds & {torch.Tensor} else found


def _is_scalar(value: Any) -> bool:
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.ndim == 0
    return value is None or isinstance(value, str | bytes) or not (hasattr(value, "__len__") or _is_image(value))


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        found: NDArray[Any] = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        return found
    if _is_image(value):
        pixels: NDArray[Any] = np.asarray(value)
        return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    return np.asarray(value)


def _is_image(value: Any) -> bool:
    """Whether this is an image of Pillow, which is imported only by those who make one."""
    return type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "getbands")


def _of_pandas(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas"


def _described(value: Any) -> str:
    kind = type(value).__name__
    shape = f" of shape {list(value.shape)}" if isinstance(value, np.ndarray | torch.Tensor) else ""
    return "None" if value is None else f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}{shape}"


def numbered(labels: Sequence[NDArray[Any]], where: Sequence[str]) -> tuple[list[Any], list[NDArray[np.int64]]]:
    """All classes in order, and each array of labels as positions in them."""
    listed = [_label_values(y, name) for y, name in zip(labels, where, strict=True)]
    kinds = {type(value): name for values, name in zip(listed, where, strict=True) for value in values}
    if len(kinds) > 1:
        (one, here), (other, there) = list(kinds.items())[:2]
        words = {str: "words", int: "whole numbers", bool: "booleans"}
        raise UserError(f"the labels of {here} are {words[one]}, and those of {there} {words[other]}; make them alike")
    classes = sorted({value for values in listed for value in values})
    places = {value: place for place, value in enumerate(classes)}
    return classes, [np.array([places[value] for value in values], dtype=np.int64) for values in listed]


def placed(labels: Sequence[NDArray[Any]], classes: Sequence[str], where: Sequence[str]) -> list[NDArray[np.int64]]:
    """Each array of labels as positions in these classes: words by name, whole numbers as they are."""
    places: dict[Any, int] = {name: place for place, name in enumerate(classes)}
    found = []
    for y, name in zip(labels, where, strict=True):
        values = [str(value) if isinstance(value, bool) else value for value in _label_values(y, name)]
        for value in dict.fromkeys(values):
            if isinstance(value, str) and value not in places:
                raise UserError(f"{name} has the label {value!r:.40}, and the classes are {few(classes)}; name them all")
            if isinstance(value, int) and not 0 <= value < len(classes):
                raise UserError(
                    f"{name} has the label {value}, and the classes are {len(classes)}; whole numbers count them from 0, so "
                    "name them all"
                )
        found.append(np.array([value if isinstance(value, int) else places[value] for value in values], dtype=np.int64))
    return found


_MOST_CLASSES = 100_000


def _label_values(y: NDArray[Any], where: str) -> list[Any]:
    """Labels as words, whole numbers or booleans."""
    if y.dtype.kind == "f":
        if np.isnan(y).any():
            raise UserError(f"{where}: the label of sample {int(np.flatnonzero(np.isnan(y))[0])} is missing; leave it out")
        if not np.isfinite(y).all() or (y != np.round(y)).any() or np.abs(y).max() > 2**53:
            raise UserError(f"{where}: the labels must be classes, as words or whole numbers; they have {_odd(y)!s:.40}")
        return [int(value) for value in y]
    if y.dtype.kind not in "biuUO":
        raise UserError(f"{where}: the labels must be classes, as words or whole numbers; they are {y.dtype}")
    found = [_label(value, number, where) for number, value in enumerate(y.tolist())]
    if len({*found}) > _MOST_CLASSES:
        raise UserError(
            f"{where}: the labels have {len({*found})} different values; classes must be fewer than {_MOST_CLASSES}"
        )
    if {type(value) for value in found} == {int, float}:
        return _label_values(np.array([as_float(value) for value in found]), where)
    if len({type(value) for value in found}) > 1:
        raise UserError(f"{where}: the labels are of several types; give only words, or only whole numbers")
    return found


def _odd(y: NDArray[Any]) -> Any:
    return y[(y != np.round(y)) | ~np.isfinite(y) | (np.abs(y) > 2**53)][0]


def _label(value: Any, number: int, where: str) -> Any:
    if missing(value):
        raise UserError(f"{where}: the label of sample {number} is missing; leave it out")
    if isinstance(value, bool | int | str | float):
        return value
    raise UserError(f"{where}: the label of sample {number} is {_described(value)}; it must be a word or a whole number")


def as_float(value: Any) -> float:
    """A number as a float; infinity if it is too large for one."""
    try:
        return float(value)
    except (OverflowError, ValueError):  # a whole number of hundreds of digits, or a Decimal that signals
        return math.inf


def missing(value: Any) -> bool:
    """Whether a value of a table is missing: None, NaN, an empty word, or pandas' NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return (isinstance(value, float) and math.isnan(value)) or (isinstance(value, str) and not value.strip())

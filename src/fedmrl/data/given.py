"""Datasets made of what users have: one thing whose samples are distributed, or a list with one for each client."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrl.data.preparation import Column
from fedmrl.data.raw import Part, Raw, Size, numbered, parts, placed
from fedmrl.data.sources import Dataset, Owned, moments
from fedmrl.errors import UserError
from fedmrl.guard import is_line

_LARGEST_TOKEN = 10**8


def dataset_of(
    given: Any,
    label: str | None = None,
    size: Size | None = None,
    name: str = "data",
    where: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Reads data in any form; a list has the data of each client. `where` names each in errors.

    `classes` are all classes by name, of which some may not occur; by default those that occur.
    """
    several = isinstance(given, list)
    if isinstance(given, Dataset) and classes is None:
        if label is not None:
            raise UserError("label is for tables, and data is a fedmrl.Dataset, whose labels are its y; leave label out")
        return given
    if several and not given:
        raise UserError("data is an empty list; give the data of each client")
    listed = list(given) if several else [given]
    names = where or ([f"client {k}'s data" for k in range(len(listed))] if several else ["data"])
    found = [parts(one, place, label, size) for one, place in zip(listed, names, strict=True)]
    if label is not None and not any(part.train.label for part in found):
        raise UserError(f"label is {label!r:.40}, and {names[0]} has no columns; leave label out")
    unscaled = [place for part, place in zip(found, names, strict=True) if not part.train.scaled]
    if size is not None and unscaled:
        raise UserError(f"size is for image folders, and {unscaled[0]} is none; leave size out")
    return _joined(found, list(names), several, name, classes)


def _joined(found: Sequence[Part], names: Sequence[str], several: bool, name: str, named: Sequence[str] | None) -> Dataset:
    """All parts as one dataset, training samples first."""
    trains = list(zip([part.train for part in found], names, strict=True))
    tests = [(part.test, f"{place} (test)") for part, place in zip(found, names, strict=True) if part.test is not None]
    raws, where = [raw for raw, _ in (*trains, *tests)], [place for _, place in (*trains, *tests)]
    classes, y = _classes(raws, where) if named is None else (list(named), placed([raw.y for raw in raws], named, where))
    x, columns, missing, notices = _inputs(raws, where)
    ends = np.cumsum([len(part) for part in y])
    positions = np.split(np.arange(ends[-1]), ends[:-1])
    own_tests = iter(positions[len(trains) :])
    owners = [Owned(positions[k], next(own_tests) if part.test is not None else None) for k, part in enumerate(found)]
    tokens = x.dtype == np.int64
    mean, std = (np.zeros(x.shape[1]), np.ones(x.shape[1])) if tokens else map(np.array, moments(x))
    names_of = tuple(map(str, classes))
    values = tuple(classes)
    said = (*(line for raw in raws for line in raw.notices), *notices)
    data = Dataset(
        name, x, np.concatenate(y), names_of, int(ends[len(trains) - 1]), np.asarray(mean), np.asarray(std), values=values,
        columns=tuple(columns), label=next((raw.label for raw in raws if raw.label), None),
        vocabulary=int(x.max()) + 1 if tokens else None, resize=raws[0].scaled, missing=missing,
        owners=tuple(owners) if several else None, own_test=bool(tests) and not several, notices=tuple(dict.fromkeys(said)),
    )  # fmt: skip
    return data.of_training(np.concatenate(positions[: len(trains)]), standardise=False)


def _classes(raws: Sequence[Raw], where: Sequence[str]) -> tuple[list[Any], list[NDArray[np.int64]]]:
    """The classes that occur, and each array of labels as positions in them."""
    classes, y = _in_given_order(raws, *numbered([raw.y for raw in raws], where))
    if len(classes) < 2:
        raise UserError(f"{where[0]} has a single class, {classes[0]!r:.40}; there is nothing to tell apart")
    if wrong := [value for value in classes if not is_line(str(value))]:
        raise UserError(f"{where[0]} has the label {wrong[0]!r:.40}; a class's name must be a line of text")
    return classes, y


def _in_given_order(
    raws: Sequence[Raw], classes: list[Any], y: list[NDArray[np.int64]]
) -> tuple[list[Any], list[NDArray[np.int64]]]:
    """The classes in the order in which the data names them, with those that have no samples, if all of it agrees."""
    given = raws[0].classes
    if given is None or any(raw.classes != given for raw in raws):
        return classes, y
    places = np.array([given.index(value) for value in classes])
    return list(given), [places[part] for part in y]


def _inputs(
    raws: Sequence[Raw], where: Sequence[str]
) -> tuple[NDArray[Any], list[Column], NDArray[np.bool_] | None, tuple[str, ...]]:
    """All inputs as one array in their stored type; of tables also the columns, what is missing, and notices."""
    tables, arrays = [raw.x for raw in raws if isinstance(raw.x, dict)], [raw.x for raw in raws if not isinstance(raw.x, dict)]
    if tables and arrays:
        raise UserError(f"{where[0]} and the others are tables and arrays mixed; give all in one form")
    if not tables:
        return _stored(arrays, where), [], None, ()
    from fedmrl.data import tables as of_tables

    columns = of_tables.fitted(tables, where)
    both = [of_tables.encoded(table, columns, place) for table, place in zip(tables, where, strict=True)]
    x, gaps = (np.concatenate(part) for part in zip(*both, strict=True))
    return x.astype(np.float32), columns, gaps if gaps.any() else None, of_tables.said(columns, gaps, where[0])


def _stored(arrays: Sequence[NDArray[Any]], where: Sequence[str]) -> NDArray[Any]:
    """Arrays of numbers, images or tokens as one, in the type in which they are stored."""
    made = []
    for x, place in zip(arrays, where, strict=True):
        if x.dtype.kind not in "biuf":
            raise UserError(f"{place}: x must be numbers, but is {x.dtype}")
        if x.ndim not in (2, 3, 4) or min(x.shape) == 0:
            raise UserError(f"{place}: x has shape {x.shape}; expected samples × channels × height × width, or × features")
        made.append(_channels_first(x[:, None] if x.ndim == 3 else x))
        if made[-1].shape[1:] != made[0].shape[1:]:
            raise UserError(
                f"samples of {place} have shape {list(made[-1].shape[1:])}, and those of {where[0]} {list(made[0].shape[1:])}; "
                "all must have the same"
            )
    types = {x.dtype for x in made}
    if types == {np.dtype(np.uint8)}:
        return np.concatenate(made)
    tokens = types <= {np.dtype(np.int32), np.dtype(np.int64)} and made[0].ndim == 2
    return np.concatenate([(_tokens if tokens else _floats)(x, place) for x, place in zip(made, where, strict=True)])


def _tokens(x: NDArray[Any], where: str) -> NDArray[np.int64]:
    if x.min() < 0 or x.max() > _LARGEST_TOKEN:
        raise UserError(
            f"{where}: x has whole numbers, which are tokens if they have 32 or 64 bits, and some are "
            f"{'below 0' if x.min() < 0 else 'too large'}; if they are measurements, give them as floats"
        )
    return x.astype(np.int64)


def _floats(x: NDArray[Any], where: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        found = x.astype(np.float32)
    if not np.isfinite(found).all():
        raise UserError(f"{where}: x has values that are NaN or infinite; leave those samples out, or fill them")
    return found


def _channels_first(x: NDArray[Any]) -> NDArray[Any]:
    """Images as channels × height × width; those whose channels come last are turned."""
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        return np.moveaxis(x, 3, 1)
    return x

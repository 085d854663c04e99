"""Datasets: scikit-learn's digits, the user's own arrays, and any other registered source."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedmrl.data.preparation import ClassValue, Column, Preparation, class_values
from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.files import user_path
from fedmrl.guard import guard, is_line, line
from fedmrl.memory import check_room
from fedmrl.registry import Registry
from fedmrl.table import IS_PATH, Named

Moments = tuple[list[float], list[float]]
"""Mean and standard deviation of each channel or feature, in raw units."""


@dataclass(frozen=True)
class Samples:
    """The samples of a source: inputs (images as channels × height × width, or features) and labels from 0."""

    x: NDArray[Any]
    y: NDArray[Any]
    classes: tuple[str, ...] | None = None
    """The classes' names; None: their numbers."""
    official_train: int | None = None
    """The size of the official training set, whose samples come first; None: all samples."""
    moments: Moments | None = None
    """Known mean and standard deviation of each channel; None: computed."""


class DataSource(Named, ABC):
    """A dataset that recipes can name; its fields are its settings."""

    summary: ClassVar[str]

    mean: list[float] | None = Field(
        None, description="subtracted from each channel or feature, in raw units (default: measured)"
    )
    std: list[Annotated[float, Field(gt=0)]] | None = Field(
        None, description="divides each channel or feature (default: measured)"
    )
    standardise_from: Literal["training"] | None = Field(
        None, description="training: measure mean and std on all clients' training samples only (default: on all samples)"
    )

    @model_validator(mode="after")
    def _one_way_to_standardise(self) -> Self:
        if self.standardise_from is not None and (self.mean is not None or self.std is not None):
            raise ValueError("standardise_from is given beside mean or std, which leave nothing to measure; leave it out")
        return self

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.summary = cls.__dict__.get("summary", (cls.__doc__ or "").strip().partition("\n")[0])
        guard(cls, "dataset", {"title": line})

    @property
    def title(self) -> str:
        """The name in tables and figures."""
        return self.name

    @abstractmethod
    def read(self) -> Samples:
        """Reads all samples."""

    def dataset(self) -> "Dataset":
        """What `read` returns as a dataset, checked."""
        where = f"data.name = {self.name}"
        try:
            samples = _checked(self.read(), where)
        except (UserError, MemoryError):
            raise
        except CODE_FAILS as error:
            raise UserError(f"{where}: read() fails ({cause(error)}); mend it") from error
        x, classes = samples.x, samples.classes or ()
        given = None if samples.moments is None else _checked_moments(samples.moments, x.shape[1], where)
        mean, std = given or moments(x)
        official_train = len(x) if samples.official_train is None else samples.official_train
        return Dataset(self.title, x, samples.y, classes, official_train, np.array(mean), np.array(std))


class Owned(NamedTuple):
    """The samples of one client, as positions in the dataset; test is None if they are to be split off."""

    train: NDArray[np.int64]
    test: NDArray[np.int64] | None


SOURCES: Registry[type[DataSource]] = Registry("dataset", "fedmrl.datasets")


@dataclass(frozen=True)
class Dataset:
    """All samples in their stored type (images as uint8), training samples first, then the official test samples."""

    name: str
    x: NDArray[np.generic]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    official_train: int
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    """For each channel (of vectors: each number), in the units of `x`: what a batch is standardised by when it is taken."""
    values: tuple[ClassValue, ...] | None = None
    """The classes as the user gave them; None: their numbers, or the names in `classes`."""
    columns: tuple[Column, ...] = ()
    """Of a table: what each column became."""
    label: str | None = None
    """Of a table: its label column."""
    vocabulary: int | None = None
    """Of tokens, which nets get as whole numbers: one more than the largest; None: the samples are no tokens."""
    resize: bool = False
    """Whether images were scaled to this size."""
    missing: NDArray[np.bool_] | None = None
    """Of a table: which numbers were missing, and are means now."""
    owners: tuple[Owned, ...] | None = None
    """The samples of each client, if each client's data was given apart."""
    own_test: bool = False
    """Whether the user gave the test samples apart, so that runs use them as the test set."""
    notices: tuple[str, ...] = ()
    """What the user should know about how the data was read."""
    source: DataSource | None = field(default=None, init=False)
    """What it was read from, which `load` says; None: it was made in Python."""

    def __post_init__(self) -> None:
        if not is_line(self.name):
            raise UserError(f"a dataset's name is {self.name!r:.80}; it must be a line of text")
        x, y = _pair(self.x, self.y, self.name)
        if x.shape != self.x.shape:
            raise UserError(f"{self.name}: x has shape {self.x.shape}; images need channels, as in {x.shape}")
        if y.max() >= len(classes := _named(self.classes, self.name)):
            raise UserError(f"{self.name}: y goes up to {y.max()}, and there are {len(classes)} classes; name them all")
        _check_official(self.official_train, len(x), self.name)
        _checked_moments((self.mean, self.std), x.shape[1], self.name)
        if self.vocabulary is not None and (self.x.dtype != np.int64 or self.x.ndim != 2 or self.x.min() < 0):
            raise UserError(f"{self.name}: tokens must be whole numbers from 0, of type int64 with one row for each sample")
        # The samples keep their type, in which a run's folder has their fingerprint.
        arrays = {"x": np.ascontiguousarray(self.x), "y": y, "mean": np.asarray(self.mean), "std": np.asarray(self.std)}
        for own, value in ({"classes": classes} | arrays).items():
            object.__setattr__(self, own, value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def preparation(self) -> Preparation:
        """What turned the user's raw input into these samples, for inputs that come later."""
        kind = "tokens" if self.vocabulary else "table" if self.columns else "numbers" if len(self.shape) == 1 else "images"
        stored = self.x.dtype if self.x.dtype == np.uint8 or self.vocabulary else np.dtype(np.float32)
        return Preparation.from_plain(
            {
                "kind": kind,
                "shape": list(self.shape),
                "dtype": str(stored),
                "classes": list(self.values or class_values(self.classes)),
                "mean": self.mean.tolist(),
                "std": self.std.tolist(),
                "columns": list(self.columns),
                "label": self.label,
                "vocabulary": self.vocabulary,
                "resize": self.resize,
            }
        )

    def blank(self, samples: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Inputs of zeros, as nets get them: numbers of this type, or tokens."""
        return torch.zeros(samples, *self.shape, device=device, dtype=dtype if self.vocabulary is None else torch.int64)

    def of_training(self, train: NDArray[np.int64], standardise: bool) -> "Dataset":
        """The data with what is missing filled by means over these training samples, and standardised by them if asked."""
        if self.vocabulary is not None or not (self.columns or standardise):
            return self
        x, columns = self._filled(train) if self.columns else (self.x, ())
        mean, std = self.mean, self.std
        if standardise:
            mean, std = map(np.array, moments(x[train]))
        elif self.missing is not None:
            source, (measured_mean, measured_std) = self.source, moments(x)
            mean = mean if source and source.mean else np.array(measured_mean)
            std = std if source and source.std else np.array(measured_std)
        made = replace(self, x=x, mean=mean, std=std, columns=columns)
        object.__setattr__(made, "source", self.source)
        return made

    def _filled(self, train: NDArray[np.int64]) -> tuple[NDArray[np.generic], tuple[Column, ...]]:
        """The table with each missing number replaced by the mean of the others in these rows."""
        x, place, columns = self.x.copy() if self.missing is not None else self.x, 0, []
        for column in self.columns:
            if column.words is None:
                there = train if self.missing is None else train[~self.missing[train, place]]
                fill = float(x[there, place].mean(dtype=np.float64)) if len(there) else column.fill
                columns.append(column.model_copy(update={"fill": fill}))
                if self.missing is not None:
                    x[self.missing[:, place], place] = fill
            else:
                columns.append(column)
            place += len(column.words or [""])
        return x, tuple(columns)


def load(source: DataSource) -> Dataset:
    """Loads the dataset that a recipe's `[data]` table names."""
    data = with_moments(source.dataset(), source)
    object.__setattr__(data, "source", source)
    return data


def with_moments(data: Dataset, source: DataSource) -> Dataset:
    """The data with the mean and standard deviation that the recipe's `[data]` table gives, if it gives any."""
    where = f"data.name = {source.name}"
    given = {name: values for name in ("mean", "std") if (values := getattr(source, name)) is not None}
    for name, values in given.items():
        if data.vocabulary is not None:
            raise UserError(f"data.{name} is given, and {where} has tokens, which are not standardised; leave it out")
        if len(values) != data.x.shape[1]:
            channels, what = data.x.shape[1], "channels" if data.x.ndim > 2 else "features"
            raise UserError(f"data.{name} has {len(values)} values; {data.name} has {channels} {what}, so give {channels}")
    mean, std = (np.array(given.get(name, getattr(data, name))) for name in ("mean", "std"))
    if np.array_equal(mean, data.mean) and np.array_equal(std, data.std):
        return data
    made = replace(data, mean=mean, std=std)
    object.__setattr__(made, "source", source)
    return made


def _checked(samples: Samples, where: str) -> Samples:
    """Validates samples: images get channels, numbers 32 bits, and each class a name."""
    if not isinstance(samples, Samples):
        raise UserError(f"{where}: read() returns a {type(samples).__name__}; it must return fedmrl.data.Samples(x, y)")
    x, y = _pair(samples.x, samples.y, where)
    names = numbered_classes(y, where) if samples.classes is None else _named(samples.classes, where)
    if y.max() >= len(names):
        raise UserError(f"{where}: y goes up to {y.max()}, but only {len(names)} classes have names; name them all")
    if samples.official_train is not None:
        _check_official(samples.official_train, len(x), where)
    return replace(samples, x=x, y=y, classes=names)


def _named(classes: Any, where: str) -> tuple[str, ...]:
    """The classes' names as a tuple of text."""
    listed = tuple(classes) if isinstance(classes, list | tuple) or (isinstance(classes, np.ndarray) and classes.ndim) else ()
    if not listed or not all(is_line(name) for name in listed):
        raise UserError(f"{where}: classes is {classes!r:.80}; it must be a tuple with a name for each class, a line of text")
    return tuple(map(str, listed))


def _check_official(train: Any, samples: int, where: str) -> None:
    if isinstance(train, bool) or not isinstance(train, int | np.integer) or not 0 < train <= samples:
        raise UserError(f"{where}: official_train is {train!r:.80}; it must be 1 to {samples}, the number of samples")


def _checked_moments(given: Any, channels: int, where: str) -> Moments:
    """A mean and a standard deviation for each channel, as finite numbers."""
    try:
        mean, std = (np.asarray(values, dtype=np.float64) for values in given)
    except (TypeError, ValueError, OverflowError):
        mean = std = np.empty(0)
    if {mean.shape, std.shape} != {(channels,)} or not (np.isfinite([mean, std]).all() and (std > 0).all()):
        raise UserError(
            f"{where}: mean and std must have {channels} finite values each, one for each channel or feature, and std must be "
            "above 0"
        )
    return mean.tolist(), std.tolist()


def numbered_classes(y: NDArray[np.int64], where: str) -> tuple[str, ...]:
    """The classes' numbers as names; each class must occur."""
    labels = np.unique(y)
    if labels[-1] != len(labels) - 1:
        absent = int(np.flatnonzero(labels != np.arange(len(labels)))[0])
        raise UserError(f"{where}: y goes up to {labels[-1]} but no sample has label {absent}; number the classes 0, 1, 2 …")
    return tuple(str(label) for label in range(len(labels)))


def _pair(x: NDArray[Any], y: NDArray[Any], where: str, suffix: str = "") -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Validates inputs and labels; images without channels get one."""
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        raise UserError(f"{where}: x{suffix} is a {type(x).__name__} and y{suffix} a {type(y).__name__}; give NumPy arrays")
    if y.ndim != 1 or x.ndim == 0 or len(x) != len(y) or not len(y):
        raise UserError(f"{where}: y{suffix} must have one label for each sample: x{suffix} is {x.shape}, y{suffix} {y.shape}")
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= 2**62:
        raise UserError(f"{where}: y{suffix} must be whole numbers from 0, one for each class (it is {y.dtype})")
    if x.ndim not in (2, 3, 4) or min(x.shape) == 0:
        raise UserError(f"{where}: x{suffix} has shape {x.shape}; expected samples × channels × height × width, or × features")
    if x.ndim == 3:
        x = x[:, None]
    if x.dtype.kind not in "iuf":
        raise UserError(f"{where}: x{suffix} must be numbers, but is {x.dtype}")
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        if not np.isfinite(x).all():
            raise UserError(f"{where}: x{suffix} has values that are NaN or infinite")
    return np.ascontiguousarray(x), np.ascontiguousarray(y, dtype=np.int64)


def moments(x: NDArray[np.generic]) -> Moments:
    """Mean and standard deviation of each channel; a constant channel is not scaled."""
    by_channel = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
    if x.dtype == np.uint8:  # counting values is exact, and needs no copy of the data in double precision
        values = np.arange(256.0)
        counts = [torch.bincount(torch.from_numpy(channel), minlength=256).numpy() for channel in by_channel]
        share = np.stack(counts) / by_channel.shape[1]
        mean, squares = share @ values, share @ values**2
    else:
        squared = by_channel.astype(np.float64)
        np.square(squared, out=squared)
        mean, squares = by_channel.mean(axis=1, dtype=np.float64), squared.mean(axis=1)
    std = np.sqrt(np.maximum(squares - mean**2, 0))
    return mean.tolist(), np.where(std > 1e-12, std, 1.0).tolist()


class Digits(DataSource):
    """scikit-learn's 1,797 hand-written digits, scaled up to 3×32×32 so that the paper's networks run on them unchanged."""

    name: ClassVar[str] = "digits"

    def read(self) -> Samples:
        """Loads the digits."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = torch.from_numpy(bunch.images).float()[:, None] * (255 / 16)
        large = F.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
        x = large.round().clamp(0, 255).to(torch.uint8).expand(-1, 3, -1, -1).contiguous().numpy()
        return Samples(x, bunch.target.astype(np.int64))


class Arrays(DataSource):
    """The user's own arrays, in an .npz file."""

    name: ClassVar[str] = "arrays"

    file: Annotated[str | None, IS_PATH] = Field(None, description="an .npz with x and y, and optionally x_test and y_test")

    def read(self) -> Samples:
        """Reads the file's arrays."""
        if self.file is None:
            raise UserError("data.name is 'arrays', so data.file must name an .npz file with arrays x and y")
        path = user_path(self.file, "data.file")
        samples = joined(plain_arrays(path), str(path))
        return replace(samples, classes=numbered_classes(samples.y, str(path)))


def joined(arrays: Mapping[str, NDArray[Any]], where: str) -> Samples:
    """Arrays x and y as samples, with x_test and y_test (or test_x and test_y) as official test samples, if there are any."""
    arrays = {{"test_x": "x_test", "test_y": "y_test"}.get(name, name): array for name, array in arrays.items()}
    for name in ("x", "y"):
        if name not in arrays:
            raise UserError(f"{where} has no array {name!r} (it has {', '.join(arrays) or 'none'}); save it with x=…, y=…")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise UserError(f"{where} has only one of x_test and y_test; give both or neither")
    suffixes = ["", "_test"] if "x_test" in arrays else [""]
    pairs = [_pair(arrays[f"x{suffix}"], arrays[f"y{suffix}"], where, suffix) for suffix in suffixes]
    if len({x.shape[1:] for x, _ in pairs}) > 1:
        raise UserError(f"{where}: samples of x have shape {pairs[0][0].shape[1:]}, those of x_test {pairs[1][0].shape[1:]}")
    x, y = pairs[0] if len(pairs) == 1 else (np.concatenate(both) for both in zip(*pairs, strict=True))
    return Samples(x, y, official_train=len(pairs[0][0]))


def plain_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in an .npz file; raises `UserError` if one would need pickle."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            needed = sum(member.file_size for member in archive.zip.infolist())
            check_room(str(path), needed)
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; data.file must name an .npz file with arrays x and y") from None
    except UserError:
        raise
    except Exception as error:  # zip, zlib, NumPy and memory all raise different errors
        advice = "; save words as text, with y.astype(str)" if "Object arrays" in str(error) else ""
        raise UserError(f"{path} cannot be read as an .npz file of plain arrays ({cause(error)}){advice}") from error
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


class Given(DataSource):
    """Data given from Python, of which the recipe holds only a fingerprint."""

    name: ClassVar[str] = "given"

    called: str = Field("data", description="the dataset's name")
    sha256: str = Field("", description="SHA-256 of all samples and labels")

    @property
    def title(self) -> str:
        """The name given in Python."""
        return self.called

    def read(self) -> Samples:
        """Raises `UserError`, as the data must be given again."""
        raise UserError(
            f"this recipe's data ({self.called}) was given from Python, and is needed again; run it there, with "
            "fedmrl.run(recipe, data=…)"
        )


class AtClients(DataSource):
    """Data that each client keeps; the recipe has only what all know of it."""

    name: ClassVar[str] = "at-clients"

    shape: list[Annotated[int, Field(ge=1)]] = Field([], description="the shape of one sample")
    classes: list[str] = Field([], description="the classes' names")
    vocabulary: Annotated[int, Field(ge=1, le=10**8)] | None = Field(
        None, description="of tokens: one more than the largest that a client may have (default: the samples are no tokens)"
    )

    @model_validator(mode="after")
    def _rows_of_tokens(self) -> Self:
        if self.vocabulary is not None and len(self.shape) != 1:
            raise ValueError(f"vocabulary is for rows of tokens, and shape is {self.shape}; give the length of a row alone")
        return self

    @property
    def title(self) -> str:
        """The name in tables and figures."""
        return "the clients' own data"

    def read(self) -> Samples:
        """Raises `UserError`, as the data is elsewhere."""
        raise UserError("this recipe's data is at the clients; run it with them, by 'fedmrl federation run'")


for _source in (Digits, Arrays):
    SOURCES.add(_source.name, _source, module=__name__)
for _elsewhere in (Given, AtClients):
    SOURCES.add(_elsewhere.name, _elsewhere, module=__name__, listed=False)


def source_of(data: Dataset) -> DataSource:
    """The recipe's entry for a dataset: its source, or a fingerprint."""
    if data.source is not None:
        return data.source
    digest = hashlib.sha256(repr((data.x.shape, str(data.x.dtype), data.classes, data.official_train)).encode())
    for array in (data.x, data.y, data.mean, data.std):
        digest.update(np.ascontiguousarray(array).data)
    for positions in (array for own in data.owners or () for array in own if array is not None):
        digest.update(repr(len(positions)).encode() + np.ascontiguousarray(positions).data)
    return Given(called=data.name, sha256=digest.hexdigest())

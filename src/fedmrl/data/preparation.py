"""What turns a user's raw input into what a net is fed, and its outputs back into the user's class names."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from fedmrl.errors import UserError
from fedmrl.schema import Part, first_problem

ClassValue = bool | int | str
_MEAN_OF_BYTES = 2.0
"""A larger mean shows that images stored as floats have the range of bytes."""


class Column(Part):
    """A column of a table, and how its values become numbers."""

    name: str
    fill: float = 0.0
    """The number for a missing value: the mean of the training data."""
    words: list[str] | None = None
    """A column of words becomes one number for each of these words, 1 for the sample's own; a missing word has only zeros."""


class Preparation(Part):
    """How a dataset's raw inputs become the unstandardised arrays that are stored, and what its classes are called.

    A net is fed `(x - mean) / std`, where x are the `features`; tokens are fed as they are.
    """

    kind: Literal["numbers", "table", "images", "tokens"]
    shape: list[int]
    """The shape of one sample as a net gets it; images are channels × height × width."""
    dtype: str
    """The stored type of `features`: uint8 or float32; int64 for tokens."""
    classes: list[ClassValue]
    """The classes as the user gave them (words, whole numbers or booleans), in the order of a net's outputs."""
    mean: list[float]
    """For each channel (of vectors: each number), in the units of `features`; 0 for tokens."""
    std: list[float]
    columns: list[Column] = Field(default_factory=list)
    """The table's columns in order, without the label."""
    label: str | None = None
    """The table's label column, which inputs may still have."""
    vocabulary: int | None = None
    """One more than the largest token that may come: that of the data, or that of the models' embeddings if larger."""
    resize: bool = False
    """Whether images of other sizes are scaled to `shape`; otherwise they are refused."""

    def features(self, raw: Any) -> NDArray[Any]:
        """The samples in `raw` as stored arrays, before standardisation; raises `UserError` if they do not fit.

        `raw` is an array, a torch tensor or Dataset, a DataFrame, a mapping of columns, a list of samples, or the path of a
        file or image folder. A label column or array in it is ignored.

        >>> table = Preparation(
        ...     kind="table", shape=[3], dtype="float32", classes=["ill", "well"], mean=[0.0] * 3, std=[1.0] * 3,
        ...     columns=[Column(name="age", fill=40.0), Column(name="site", words=["left", "right"])], label="state",
        ... )
        >>> table.features({"site": ["right", "left"], "age": [52, None]}).tolist()
        [[52.0, 0.0, 1.0], [40.0, 1.0, 0.0]]
        """
        from fedmrl.data.raw import inputs

        found = inputs(raw, "the input", self.label, (self.shape[1], self.shape[2]) if self.resize else None)
        if self.kind == "table":
            from fedmrl.data.tables import encoded, in_order

            columns = in_order(found, self.columns, "the input")
            x, missing = encoded(columns, self.columns, "the input")
            fill = np.array([column.fill for column in self.columns for _ in column.words or [""]])
            return np.where(missing, fill, x).astype(np.float32)
        return self._stored(found)

    def _stored(self, found: Any) -> NDArray[Any]:
        """An array of samples in the stored type."""
        if isinstance(found, Mapping):
            raise UserError(
                f"the input is a table with the columns {few(found)}, and this model was trained on samples of shape "
                f"{self.shape}; give an array"
            )
        x, wanted = np.asarray(found), tuple(self.shape)
        if self.kind == "images":
            if len(wanted) == 3 and x.ndim == 3 and wanted[0] == 1:
                x = x[:, None]
            if x.ndim == 4 and x.shape[1:] != wanted and (x.shape[3], *x.shape[1:3]) == wanted:
                x = np.moveaxis(x, 3, 1)
            if len(wanted) == 3 and x.shape[1:] == (1, *wanted[1:]):  # grey images for a model of coloured ones
                x = np.repeat(x, wanted[0], axis=1)
        if x.ndim == 0 or x.shape[1:] != wanted:
            raise UserError(f"the input has samples of shape {list(x.shape[1:])}; this model was trained on {self.shape}")
        if x.dtype.kind not in "biuf":
            raise UserError(f"the input must be numbers, but is {x.dtype}")
        if self.kind == "tokens":
            return _tokens(x, self.vocabulary)
        if self.dtype == "uint8" and x.dtype != np.uint8:
            if x.size and (x.min() < 0 or x.max() > 255 or (x != np.round(x)).any()):
                raise UserError("the input must be whole numbers from 0 to 255, as this model was trained on bytes")
            return np.ascontiguousarray(x, dtype=np.uint8)
        # Floats of images are mostly between 0 and 1; a larger mean shows that these floats are bytes, too.
        if self.kind == "images" and self.dtype == "float32" and x.dtype == np.uint8 and max(self.mean) <= _MEAN_OF_BYTES:
            raise UserError("the input is bytes, and this model was trained on floats; give floats in the units of training")
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(x, dtype=self.dtype)
        if stored.dtype.kind == "f" and not np.isfinite(stored).all():
            raise UserError("the input has values that are NaN or infinite")
        return stored

    def labels(self, indices: Iterable[int] | NDArray[Any]) -> NDArray[Any]:
        """The classes of a net's outputs, in the user's form.

        >>> two = Preparation(kind="numbers", shape=[1], dtype="float32", classes=["ill", "well"], mean=[0.0], std=[1.0])
        >>> two.labels([1, 0]).tolist()
        ['well', 'ill']
        """
        return np.array(self.classes)[np.asarray(indices, dtype=np.int64)]

    def plain(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_plain(cls, plain: Any, where: str = "preparation") -> Self:
        """Validates plain data; `where` is for errors."""
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            raise UserError(f"{where} is damaged ({first_problem(error)}); run it again") from error


def _tokens(x: NDArray[Any], vocabulary: int | None) -> NDArray[np.int64]:
    if x.dtype.kind not in "iu" or (x.size and x.min() < 0):
        raise UserError(f"the input must be tokens, whole numbers from 0 (it is {x.dtype})")
    if vocabulary is not None and x.size and x.max() >= vocabulary:
        raise UserError(f"the input has the token {x.max()}; this model knows those from 0 to {vocabulary - 1}")
    return np.ascontiguousarray(x, dtype=np.int64)


def class_values(names: Iterable[str]) -> list[ClassValue]:
    """Classes by their names: whole numbers if the names count from 0, as data without names has.

    >>> class_values(["0", "1"]), class_values(["cat", "dog"])
    ([0, 1], ['cat', 'dog'])
    """
    listed = list(names)
    return [*range(len(listed))] if listed == [str(label) for label in range(len(listed))] else [*listed]


def few(names: Iterable[Any]) -> str:
    """The first of some names, for messages.

    >>> few(["a", "b"]), few("abcdefg")
    ("'a', 'b'", "'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    listed = [repr(name)[:40] for name in names]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")

"""Files of the user's own, by their endings: .npz, .csv, .parquet, and folders of images."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

from numpy.typing import NDArray
from pydantic import Field

from fedmrl.data.images import SUFFIXES, read_images, read_unlabelled
from fedmrl.data.raw import Columns, Part, Size, of_arrays, of_columns, of_inputs, stacked
from fedmrl.data.sources import SOURCES, Dataset, DataSource, Samples, plain_arrays
from fedmrl.data.tables import read_csv, read_parquet
from fedmrl.errors import UserError
from fedmrl.files import user_path
from fedmrl.table import IS_PATH

_TABLES = (".csv", ".tsv", ".parquet")


def read_file(path: Path, label: str | None, size: Size | None) -> Part:
    """The samples and labels in a file or image folder."""
    path = _there(path)
    if path.is_dir():
        return read_images(path, size)
    if path.suffix == ".npz":
        return of_arrays(plain_arrays(path), str(path))
    if path.suffix in _TABLES:
        return Part(of_columns(_table(path, label), label, str(path)))
    raise UserError(f"{path} is no kind of file that is known; give .npz, .csv, .parquet or a folder of images")


def read_inputs(path: Path, label: str | None, size: Size | None) -> NDArray[Any] | Columns:
    """The samples in a file or image folder, without their labels."""
    path = _there(path)
    if path.is_dir() or path.suffix.lower() in SUFFIXES:
        return read_unlabelled(path, size)
    if path.suffix == ".npz":
        arrays = plain_arrays(path)
        if "x" not in arrays:
            raise UserError(f"{path} has no array 'x' (it has {', '.join(arrays) or 'none'}); save it with x=…")
        return stacked(arrays["x"], f"{path}: x")
    if path.suffix in _TABLES:
        columns = {name: values for name, values in _table(path, label).items() if name != label}
        return of_inputs(columns, str(path))
    raise UserError(f"{path} is no kind of file that is known; give .npz, .csv, .parquet, an image or a folder of images")


def _there(path: Path) -> Path:
    found = user_path(path, "the file")
    try:
        if not found.exists():
            raise UserError(f"{found} does not exist; name a file or a folder of images")
    except OSError as error:
        raise UserError(f"{str(found)[:80]!r} cannot be a file's name ({error.strerror})") from error
    return found


def _table(path: Path, label: str | None) -> Columns:
    return read_parquet(path) if path.suffix == ".parquet" else read_csv(path, label)


class Files(DataSource):
    """Files of your own: .npz, .csv, .parquet or image folders; several are the data of a client each."""

    name: ClassVar[str] = "files"

    files: Annotated[list[str], IS_PATH] = Field(
        [],
        description="a file or image folder whose samples are distributed; or one for each client, with partition.kind 'own'",
    )
    label: str | None = Field(None, description="the column of the labels in a table")
    size: Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=2, max_length=2)] | None = Field(
        None, description="height and width to which images are scaled (default: they must be of one size)"
    )

    @property
    def title(self) -> str:
        """The name in tables and figures: that of the file."""
        first = Path(self.files[0]).stem if self.files else self.name
        return first if len(self.files) < 2 else f"{first} and {len(self.files) - 1} more"

    def read(self) -> Samples:
        """The samples of all files; what else there is to know is in `dataset`."""
        data = self.dataset()
        return Samples(data.x, data.y, data.classes, data.official_train)

    def dataset(self) -> Dataset:
        """The files as a dataset."""
        if not self.files:
            raise UserError("data.name is 'files', so data.files must name at least one file or image folder")
        from fedmrl.data.given import dataset_of

        paths = [Path(file) for file in self.files]
        size = (self.size[0], self.size[1]) if self.size else None
        return dataset_of(paths if len(paths) > 1 else paths[0], self.label, size, self.title, [str(path) for path in paths])


SOURCES.add(Files.name, Files, module=__name__)

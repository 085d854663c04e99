"""Data, models and files that cannot be used: each is a sentence, before anything is written."""

import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import fedmrl
from fedmrl import OwnModel, UserError
from fedmrl.data import Files, dataset_of
from fedmrl.data.sources import load

X, Y = np.arange(24, dtype=np.float32).reshape(8, 3), np.arange(8) % 2
GOOD = (X, Y)


def net(outputs=2, inputs=3):
    return lambda: nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, outputs))


class Failing(TorchDataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 3:
            raise OSError("the disk is gone")
        return X[i], Y[i]


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]


class Ragged(TorchDataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.zeros(3 + i % 2), i % 2


class Triples(Ragged):
    def __getitem__(self, i):
        return X[i], Y[i], i


class Changing(Ragged):
    def __getitem__(self, i):
        return {"x": X[i], "label": 0} if i < 2 else {"x": X[i]}


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("not today")


DATA = {
    "None in a list": ([GOOD, None], r"client 1's data is None; give .x, y."),
    "a number": (3, "data is an int; give .x, y."),
    "x alone": (X, r"data is a ndarray of shape \[8, 3\] without labels; give a tuple"),
    "a list of x and y": ([X, Y], "client 0's data is a ndarray .* without labels"),
    "an empty list": ([], "data is an empty list"),
    "a tuple of three": ((X, Y, X), r"data is a tuple of 3; give .x, y., or .x, y, x_test, y_test."),
    "too few labels": ((X, Y[:5]), r"must have one label for each sample: x is \(8, 3\), y \(5,\)"),
    "one-hot labels": ((X, np.eye(2)[Y]), r"must have one label for each sample: x is \(8, 3\), y \(8, 2\)"),
    "no samples": ((X[:0], Y[:0]), "must have one label for each sample"),
    "empty lists": (([], []), "x is empty; give some samples"),
    "ragged lists": (([[1, 2], [1]], [0, 1]), r"sample 1 has shape \[1\], and the first has \[2\]"),
    "NaN in an array": ((np.full((4, 2), np.nan), Y[:4]), "x has values that are NaN or infinite"),
    "words in an array": ((np.full((4, 2), "a"), Y[:4]), "x must be numbers, but is"),
    "objects in an array": ((np.full((4, 2), object()), Y[:4]), "x must be numbers, but is object"),
    "complex": ((X + 1j, Y), "x must be numbers, but is complex"),
    "one axis": ((X[:, 0], Y), r"x has shape \(8,\); expected samples"),
    "five axes": ((np.zeros((8, 1, 2, 2, 2)), Y), "expected samples × channels × height × width"),
    "negative tokens": ((np.full((8, 3), -1), Y), "are tokens if they have 32 or 64 bits, and some are below 0"),
    "tokens too large": ((np.full((8, 3), 2**60), Y), "and some are too large; if they are measurements"),
    "a single class": ((X, [1] * 8), "has a single class, 1; there is nothing to tell apart"),
    "labels between numbers": ((X, Y + 0.5), "the labels must be classes, as words or whole numbers; they have 0.5"),
    "a missing label": ((X, ["a", None] * 4), "the label of sample 1 is missing; leave it out"),
    "labels of two kinds": ((X, ["a", 1] * 4), "the labels are of several types"),
    "labels of two lines": ((X, ["a\nb", "c"] * 4), r"has the label 'a\\nb'; a class's name must be a line of text"),
    "lists as labels": ((X, [[0, 1], [1]] * 4), r"y: sample 1 has shape \[1\], and the first has \[2\]"),
    "dates as labels": ((X, pd.date_range("2020", periods=8).to_numpy()), "the labels must be classes, .* they are datetime64"),
    "another class kind elsewhere": ([GOOD, (X, ["a", "b"] * 4)], "the labels of client 0's data are whole numbers, and those"),
    "other features elsewhere": (
        [GOOD, (X[:, :2], Y)],
        r"client 1's data have shape \[2\], and those of client 0's",
    ),
    "a table and an array": ([GOOD, {"a": Y, "label": Y}], "are tables and arrays mixed"),
    "a test set of another shape": ((X, Y, X[:, :2], Y), r"\(test\) have shape \[2\], and those of data \[3\]"),
    "test without labels": ({"x": X, "y": Y, "x_test": X}, "has only one of x_test and y_test; give both or neither"),
    "a split that is unknown": ({"train": GOOD, "tset": GOOD}, "has 'tset' beside 'train'"),
    "an empty mapping": ({}, "data is an empty mapping"),
    "columns of several lengths": ({"a": [1, 2], "label": [0]}, "column 'a' has 2 values and 'label' 1"),
    "two wide columns": ({"a": X, "b": X, "label": Y}, "column 'a' has several numbers for each sample, and there are others"),
    "a wide column beside another": ({"a": X, "n": Y, "label": Y}, "keep one input column"),
    "a scalar column": ({"a": 3, "label": Y}, "column 'a' is an int; it must have a value for each sample"),
    "a DataFrame without rows": (pd.DataFrame({"a": [], "label": []}), "must have one label for each sample"),
    "a DataFrame without columns": (pd.DataFrame(), "name the column of the labels"),
    "a torch Dataset that fails": (Failing(), "item 3 fails .OSError: the disk is gone.; fix the Dataset"),
    "a torch Dataset without length": (Endless(), "a torch Dataset without a length; give a Dataset that knows its length"),
    "a DataLoader": (DataLoader(TensorDataset(torch.zeros(2, 2))), "data is a DataLoader; give a Dataset"),
    "ragged items": (Ragged(), r"sample 1 has shape \[4\], and the first has \[3\]"),
    "items of three": (Triples(), "item 0 is a tuple; it must be a pair .x, y. or a mapping"),
    "items that change": (Changing(), "item 2 has 'x', and the first has 'x', 'label'; all must have the same"),
    "no items": (TensorDataset(torch.zeros(0, 2), torch.zeros(0)), "data is empty; give some samples"),
    "sparse": ((torch.eye(8).to_sparse(), Y), "cannot be read as an array"),
    "a client with one sample": ([GOOD, (X[:1], Y[:1])], "client 1 has 1 training and 0 test samples"),
    "an empty test set": ([(X, Y, X[:0], Y[:0])], "must have one label for each sample"),
    "a file that is not there": ("nowhere.csv", "nowhere.csv does not exist"),
}
MODELS = {
    "too many outputs": (net(5), "gives 5 outputs, and the data has 2 classes"),
    "other inputs": (net(inputs=7), "does not run on an input of shape"),
    "raises": (Raises, r"Raises does not run on an input of shape \[2, 3\] \(ValueError: not today\)"),
    "no module": (lambda: 3, "make returns an int; it must return an nn.Module"),
    "needs arguments": (lambda width: nn.Linear(width, 2), "cannot be made .TypeError"),
    "an optimiser": (torch.optim.SGD, "give an nn.Module, a function that makes one, or a fedmrl.OwnModel"),
    "an embedding of numbers": (
        lambda: nn.Sequential(nn.Embedding(30, 3), nn.Flatten(), nn.Linear(9, 2)),
        "; tokens must be whole numbers of 64 bits, with two axes",
    ),
    "a softmax": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), "other layers come, such as a softmax"),
    "no last layer of that name": (OwnModel("a", net(), last="fc"), "has no layer 'fc'; did you mean"),
    "no output of that name": (OwnModel("a", net(), output="logits"), "output is 'logits', and the model returns a Tensor"),
    "a representation below d1": (
        lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)),
        r"method.d1 is 3, more than client 0's representation \(2, model 'model 1'\); choose 1 to 2",
    ),
    "the recipe's CNNs": (None, "takes images of at least 16×16 pixels"),
}


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def folder(path, **classes):
    for name, content in classes.items():
        (path / name).mkdir(parents=True)
        for number, one in enumerate(content):
            if isinstance(one, bytes):
                (path / name / f"{number}.png").write_bytes(one)
            else:
                Image.new("RGB", one).save(path / name / f"{number}.png")
    path.mkdir(exist_ok=True)
    return path


FILES = {
    "another ending": (lambda p: write(p / "a.xlsx", "x"), "is no kind of file that is known; give .npz, .csv"),
    "text as .npz": (lambda p: write(p / "a.npz", "hello"), "cannot be read as an .npz file"),
    "an .npz without y": (lambda p: np.savez(p / "a.npz", x=X) or p / "a.npz", "has no array 'y'"),
    "an .npz of objects": (lambda p: np.savez(p / "a.npz", x=X, y=np.array([object()] * 8)) or p / "a.npz", "plain arrays"),
    "an empty .csv": (lambda p: write(p / "a.csv", ""), "has no rows; it needs a header"),
    "only a header": (lambda p: write(p / "a.csv", "a,label\n"), "has no rows; it needs a header"),
    "ragged rows": (lambda p: write(p / "a.csv", "a,label\n1,0\n1,2,3\n"), "line 3 has 3 values, and the header 2"),
    "bytes as .csv": (lambda p: write(p / "a.csv", b"a,label\n\xff\xfe,1\n"), "is not text in UTF-8"),
    "two equal columns": (lambda p: write(p / "a.csv", "a,a\n1,2\n"), "has two columns 'a'"),
    "a nameless column": (lambda p: write(p / "a.csv", "a,\n1,2\n"), "has a column without a name"),
    "an open quote": (lambda p: write(p / "a.csv", 'a,label\n"1,0\n'), "is not a CSV file"),
    "a null byte": (
        lambda p: write(p / "a.csv", "a,label\n\0,1\n2,0\n3,1\n"),
        r"a.csv: line 2 has a null byte; save the file as CSV in UTF-8$",
    ),
    "no label column": (lambda p: write(p / "a.csv", "a,b\n1,0\n2,1\n"), "name the column of the labels as label"),
    "text as .parquet": (lambda p: write(p / "a.parquet", "hello"), "cannot be read as a Parquet file"),
    "an empty folder": (lambda p: folder(p / "i"), "has no folders with PNG or JPEG images"),
    "images without folders": (
        lambda p: Image.new("L", (3, 3)).save(folder(p / "i") / "a.png") or p / "i",
        "it has images, but no folders",
    ),
    "an empty class": (lambda p: folder(p / "i", cat=[(9, 9)], dog=[]), "dog has no PNG or JPEG images"),
    "one class": (lambda p: folder(p / "i", cat=[(9, 9)] * 4), "has a single class, 'cat'"),
    "a damaged image": (lambda p: folder(p / "i", cat=[(9, 9)], dog=[b"no image"]), "0.png cannot be read as an image"),
    "images of two sizes": (
        lambda p: folder(p / "i", cat=[(9, 9)], dog=[(8, 7)]),
        "has 7×8 pixels, and 0.png 9×9; set",
    ),
}


def refused(tmp_path, says, **given):
    """The sentence with which a run ends, of which nothing is left."""
    before = set(tmp_path.rglob("*"))
    fields = {"method": fedmrl.FedMRL(d1=3), "rounds": 1, "clients": 2, "participation": 1.0, "partition": {"kind": "iid"}}
    if isinstance(given.get("data"), list):
        del fields["clients"]
    with pytest.raises(UserError, match=says) as refusal:
        fedmrl.run("quickstart", **fields, **given, out=tmp_path / "run")
    assert len(str(refusal.value).splitlines()) == 1
    assert set(tmp_path.rglob("*")) == before


def test_there_are_more_than_fifty_cases():
    assert len(DATA) + len(MODELS) + len(FILES) > 80


@pytest.mark.parametrize("case", DATA)
def test_a_bad_input_is_a_sentence_and_nothing_is_written(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    data, says = DATA[case]
    refused(tmp_path, says, data=data, models=[net()])


@pytest.mark.parametrize("case", MODELS)
def test_a_bad_model_is_a_sentence_and_nothing_is_written(tmp_path, case):
    model, says = MODELS[case]
    refused(tmp_path, says, data=GOOD, models=None if model is None else [model])


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_a_sentence_and_nothing_is_written(tmp_path, case):
    make, says = FILES[case]
    refused(tmp_path, says, data=make(tmp_path), models=[net()])


def test_a_label_for_data_without_columns_is_refused(tmp_path):
    refused(tmp_path, "label is 'y', and data has no columns; leave label out", data=GOOD, label="y", models=[net()])


def test_a_bomb_of_zeros_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmrl.memory.free_bytes", lambda device: 900)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(100_000))
    with pytest.raises(UserError) as refusal:
        dataset_of(tmp_path / "a.npz")
    says = "needs 97.7 KiB of memory, and 900 bytes are free; give fewer samples"
    assert str(refusal.value) == f"{tmp_path / 'a.npz'} {says}"


@pytest.mark.parametrize("kind", ["a.csv", "a.parquet", "images"])
def test_files_larger_than_the_free_memory_are_refused(tmp_path, monkeypatch, kind):
    path = tmp_path / kind
    frame = pd.DataFrame({"a": np.arange(1000), "label": np.arange(1000) % 2})
    if kind == "images":
        folder(path, cat=[(90, 90)], dog=[(90, 90)])
    else:
        frame.to_csv(path, index=False) if kind == "a.csv" else frame.to_parquet(path)
    assert len(dataset_of(path).y) > 1
    monkeypatch.setattr("fedmrl.memory.free_bytes", lambda device: 40_000)
    with pytest.raises(UserError, match=r"needs .* KiB of memory, and 39.1 KiB are free; give fewer samples"):
        dataset_of(path)


def test_words_saved_from_a_data_frame_as_labels_are_refused_with_what_to_do(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=np.array(["a", "b"] * 4, dtype=object))
    with pytest.raises(UserError, match=r"; save words as text, with y.astype\(str\)$"):
        dataset_of(tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_a_size_for_what_is_no_image_folder_is_refused(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    np.savez(path, x=X, y=Y) if suffix == "npz" else path.write_text("a,label\n1,0\n2,1\n")
    with pytest.raises(UserError, match=rf"size is for image folders, and .*a.{suffix} is none; leave size out"):
        load(Files(files=[str(path)], size=[32, 32]))
    refused(tmp_path, "size is for image folders", data=path, models=[net()], settings={"data.size": [32, 32]})
    refused(tmp_path, "data.size is for image folders", data=GOOD, models=[net()], settings={"data.size": [32, 32]})


LARGE = 10**400


@pytest.mark.parametrize(
    "given", [{"a": [LARGE, 1, 2, 3], "label": [0, 1, 0, 1]}, {"a": [LARGE, 1, None, 3], "label": [0, 1, 0, 1]}]
)
def test_a_whole_number_of_hundreds_of_digits_is_a_sentence(tmp_path, given):
    with pytest.raises(UserError, match="column 'a' has values that are infinite or too large; leave them out"):
        dataset_of(given)
    rows = "".join(f"{'' if a is None else a},{label}\n" for a, label in zip(given["a"], given["label"], strict=True))
    with pytest.raises(UserError, match="column 'a' has values that are infinite or too large; leave them out"):
        dataset_of(write(tmp_path / "a.csv", f"a,label\n{rows}"))
    with pytest.raises(UserError, match="labels must be classes"):
        dataset_of((X[:3], [LARGE, 1, 0.5]))


@pytest.mark.parametrize("kind", ["frame", "mapping", "csv", "parquet", "x"])
def test_a_columns_name_of_two_lines_is_refused_since_it_would_get_into_recipes(tmp_path, kind):
    frame = pd.DataFrame({"a\nimports = 3 #": [1.0, None, 3.0, 4.0], "label": [0, 1, 0, 1]})
    forms = {"frame": lambda: frame, "mapping": lambda: dict(frame), "x": lambda: (frame.iloc[:, :1], frame["label"])}
    if kind == "csv":
        frame.to_csv(tmp_path / "a.csv", index=False)
    if kind == "parquet":
        frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"has a column 'a\\nimports = 3 #'; its name must be a line of text"):
        dataset_of(forms[kind]() if kind in forms else tmp_path / f"a.{kind}")


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3))
NESTED = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["x", "y", "label", "train", "test", "a"]), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(NESTED)
def test_whatever_is_given_as_data_is_a_dataset_or_a_sentence(given):
    try:
        data = dataset_of(given)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert len(data.x) == len(data.y) > 0


CELLS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(width=32), st.sampled_from(["a", "b", " ", "\n"]))


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=8))
def test_whatever_a_table_has_is_a_dataset_or_a_sentence(rows):
    frame = pd.DataFrame(rows, columns=["a", "b", "label"], dtype=object)
    try:
        data = dataset_of(frame, "label")
    except UserError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert np.isfinite(data.x).all() and np.array_equal(data.preparation.features(frame), data.x)


@given(st.text(alphabet=',;\t\n"ab1. \0é?', max_size=60))
def test_whatever_a_csv_file_has_is_a_dataset_or_a_sentence(text):
    with TemporaryDirectory() as place:
        path = Path(place) / "a.csv"
        path.write_text(f"a,label\n{text}", encoding="utf-8")
        try:
            data = dataset_of(path, "label")
        except UserError as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert len(data.x) == len(data.y)

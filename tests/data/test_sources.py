import shutil
import sys
import zipfile

import numpy as np
import pytest
import torch
from tiny import data_file

from fedmrl.data import SOURCES, Arrays, Cifar10, Cifar100, DataSource, Digits, Samples
from fedmrl.data.cifar import data_dir
from fedmrl.data.sources import load, moments
from fedmrl.errors import UserError


def test_an_archive_that_unpacks_to_more_than_there_is_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((1000, 1000), np.uint8), y=np.zeros(1000, np.int64))
    monkeypatch.setattr("fedmrl.memory.free_bytes", lambda device: 500_000)
    with pytest.raises(UserError, match=r"bomb.npz needs 984.6 KiB of memory, and 488.3 KiB are free; give fewer samples"):
        load(Arrays(file=str(path)))


def test_digits_are_as_large_as_cifar_and_stay_bytes():
    data = load(Digits())
    assert data.x.shape == (1797, 3, 32, 32) and data.x.dtype == np.uint8
    assert data.x.max() == 255 and len(data.classes) == 10


def test_standardising_measures_each_channel():
    data = load(Arrays(file=str(data_file())))
    np.testing.assert_allclose(data.mean, data.x.mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(data.std, data.x.std(axis=(0, 2, 3)))


def test_given_mean_and_std_are_taken(tmp_path):
    data = load(Digits(mean=[1, 2, 3], std=[4, 5, 6]))
    assert data.mean.tolist() == [1, 2, 3] and data.std.tolist() == [4, 5, 6]
    with pytest.raises(UserError, match=r"data.mean has 1 values; digits has 3 channels, so give 3"):
        load(Digits(mean=[1]))


def test_float_arrays_with_a_test_set(tmp_path):
    path = tmp_path / "own.npz"
    x = np.random.default_rng(0).normal(size=(6, 5))
    np.savez(path, x=x, y=[0, 1, 0, 1, 0, 1], x_test=x[:2], y_test=[0, 1])
    data = load(Arrays(file=str(path)))
    assert data.x.shape == (8, 5) and data.official_train == 6 and data.x.dtype == np.float32
    np.testing.assert_allclose(data.std, data.x.std(axis=0), rtol=1e-6)


def test_a_constant_feature_is_not_divided_by_zero(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x=np.ones((4, 2)), y=[0, 1, 0, 1])
    assert load(Arrays(file=str(path))).std.tolist() == [1, 1]


GOOD = {"x": np.zeros((4, 1, 16, 16), np.uint8), "y": np.array([0, 1, 0, 1])}


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": GOOD["x"]}, "has no array 'y' (it has x)"),
        ({**GOOD, "y": np.array([0, 1])}, "one label for each sample"),
        ({**GOOD, "y": np.array([0.5, 1, 0, 1])}, "must be whole numbers from 0"),
        ({**GOOD, "y": np.array([0, 2, 0, 2])}, "no sample has label 1"),
        ({**GOOD, "x": np.full((4, 16, 16), np.nan)}, "NaN or infinite"),
        ({**GOOD, "x": np.array(["a", "b", "c", "d"])[:, None]}, "must be numbers"),
        ({**GOOD, "x": np.zeros((4, 1, 1, 1, 1))}, "expected samples × channels"),
        ({**GOOD, "y": np.array(["a", "b", "a", "b"])}, "must be whole numbers from 0"),
        ({**GOOD, "y": np.array([0, 1, 0, 10**11])}, "no sample has label 2"),
        ({**GOOD, "y": np.array([0, 1, 0, 2**63], np.uint64)}, "must be whole numbers from 0"),
        ({**GOOD, "x": np.full((4, 16, 16), 1e300)}, "NaN or infinite"),
        ({**GOOD, "x": np.array(3)}, "one label for each sample"),
        ({**GOOD, "x_test": GOOD["x"]}, "only one of x_test and y_test"),
        ({**GOOD, "x_test": np.zeros((4, 3)), "y_test": GOOD["y"]}, "those of x_test"),
        ({**GOOD, "y": np.array([object()] * 4)}, "cannot be read as an .npz file of plain arrays"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_in_a_sentence(tmp_path, arrays, sentence):
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)
    with pytest.raises(UserError) as refusal:
        load(Arrays(file=str(path)))
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


def test_files_that_are_not_there_or_not_npz_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"data.file must name an .npz"):
        load(Arrays())
    with pytest.raises(UserError, match="does not exist"):
        load(Arrays(file=str(tmp_path / "no.npz")))
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(UserError, match=r"cannot be read as an .npz"):
        load(Arrays(file=str(tmp_path / "text.npz")))


def test_missing_cifar_says_how_to_get_it(tmp_path):
    with pytest.raises(UserError, match=r"data_batch_1.bin is missing and 5 more; fetch them with 'fedmrl data cifar10"):
        load(Cifar10(dir=str(tmp_path)))


def test_the_data_folder_is_the_one_given_or_the_environments_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDMRL_DATA", str(tmp_path))
    assert str(data_dir("/a")) == "/a" and data_dir(None) == tmp_path
    monkeypatch.delenv("FEDMRL_DATA")
    assert data_dir(None).parts[-2:] == (".cache", "fedmrl")


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_real_cifar_has_60000_images_of_its_classes(cifar_dir, name, classes):
    data = load(SOURCES[name](dir=str(cifar_dir)))
    assert data.x.shape == (60_000, 3, 32, 32) and data.x.dtype == np.uint8 and data.official_train == 50_000
    assert (np.bincount(data.y) == 60_000 // classes).all() and len(data.classes) == classes
    assert np.array_equal((data.mean, data.std), moments(data.x)), "they are written down as they are measured"
    if name == "cifar10":  # the well-known moments of its training images, to two digits
        np.testing.assert_allclose(data.mean / 255, [0.491, 0.482, 0.447], atol=2e-3)
        np.testing.assert_allclose(data.std / 255, [0.247, 0.243, 0.262], atol=2e-3)


def test_a_corrupt_cifar_file_is_refused_by_name(cifar_dir, tmp_path):
    folder = tmp_path / "cifar-100-binary"
    shutil.copytree(cifar_dir / "cifar-100-binary", folder)
    content = bytearray((folder / "test.bin").read_bytes())
    content[1000] ^= 1
    (folder / "test.bin").write_bytes(content)
    with pytest.raises(UserError, match=r"test.bin is not the official file \(its MD5 differs\)"):
        load(Cifar100(dir=str(tmp_path)))


def _npy_header(header: str) -> bytes:
    padded = header.ljust(118) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()


def _zip(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _damaged_deflate(path):
    _zip(
        path,
        {"x.npy": _npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (9000,)}") + bytes(9000)},
        zipfile.ZIP_DEFLATED,
    )
    content = bytearray(path.read_bytes())
    content[60:80] = b"\xff" * 20
    path.write_bytes(content)


def _encrypted(path):
    _zip(path, {"x.npy": b"secret", "y.npy": b"secret"})
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(signature)
        while at >= 0:
            content[at + flags] |= 1  # the bit that says so
            at = content.find(signature, at + 4)
    path.write_bytes(content)


HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 1000000)}"


@pytest.mark.parametrize(
    "write",
    [
        _damaged_deflate,
        _encrypted,
        lambda path: _zip(path, {"x.npy": _npy_header(HUGE), "y.npy": _npy_header(HUGE)}),
        lambda path: _zip(path, {"x.npy": _npy_header("{'descr': 'nothing', 'shape'"), "y.npy": b""}),
        lambda path: _zip(path, {"x.npy": _npy_header("[1, 2]"), "y.npy": _npy_header("(")}),
        lambda path: _zip(path, {"x": b"no array", "y": b"no array"}),
        lambda path: _zip(path, {"x.npy": b"", "y.npy": b""}),
    ],
    ids=["damaged deflate", "encrypted", "a huge shape", "a bad header", "another header", "no arrays", "empty members"],
)
def test_an_archive_that_is_damaged_in_any_way_is_refused_in_a_sentence(tmp_path, write):
    path = tmp_path / "own.npz"
    write(path)
    with pytest.raises(UserError) as refusal:
        load(Arrays(file=str(path)))
    assert str(refusal.value).startswith(str(path)) and len(str(refusal.value).splitlines()) == 1


def test_the_home_of_a_user_that_there_is_not_is_refused_in_a_sentence():
    with pytest.raises(UserError, match=r"data.file: '~nosuchuser/a.npz' names the home folder of an unknown user"):
        load(Arrays(file="~nosuchuser/a.npz"))


X, Y = np.zeros((8, 1, 4, 4), np.uint8), np.arange(8) % 2
WRONG_READS = {
    "nothing": (lambda: None, "read.. returns a NoneType; it must return fedmrl.data.Samples"),
    "a pair": (lambda: (X, Y), "read.. returns a tuple; it must return fedmrl.data.Samples"),
    "raises": (lambda: 1 / 0, "read.. fails .ZeroDivisionError: division by zero.; mend it"),
    "exits": (sys.exit, "read.. fails .SystemExit.; mend it"),
    "lists": (lambda: Samples(X.tolist(), Y), "x is a list and y a ndarray; give NumPy arrays"),
    "tensors": (lambda: Samples(torch.from_numpy(X), torch.from_numpy(Y)), "x is a Tensor and y a Tensor; give NumPy arrays"),
    "times": (lambda: Samples(X.astype("m8[s]"), Y), "x must be numbers, but is timedelta64"),
    "times as labels": (lambda: Samples(X, Y.astype("m8[s]")), "y must be whole numbers from 0"),
    "objects": (lambda: Samples(X.astype(object), Y), "x must be numbers, but is object"),
    "a number of classes": (lambda: Samples(X, Y, 2), "classes is 2; it must be a tuple with a name for each class"),
    "a word as classes": (lambda: Samples(X, Y, "ab"), "classes is 'ab'; it must be a tuple with a name"),
    "numbers as classes": (lambda: Samples(X, Y, (0, 1)), "it must be a tuple with a name for each class, a line of text"),
    "lines as classes": (lambda: Samples(X, Y, ("a\nb", "c")), "it must be a tuple with a name for each class, a line of text"),
    "no text as classes": (lambda: Samples(X, Y, ("\ud800", "c")), "it must be a tuple with a name for each class"),
    "too few classes": (lambda: Samples(X, Y, ("a",)), "y goes up to 1, but only 1 classes have names"),
    "half a sample": (lambda: Samples(X, Y, None, 2.5), "official_train is 2.5; it must be 1 to 8"),
    "true": (lambda: Samples(X, Y, None, True), "official_train is True; it must be 1 to 8"),
    "text": (lambda: Samples(X, Y, None, "all"), "official_train is 'all'; it must be 1 to 8"),
    "a number as moments": (lambda: Samples(X, Y, None, None, 3), "mean and std must have 1 finite values each"),
    "one moment": (lambda: Samples(X, Y, None, None, ([1.0],)), "mean and std must have 1 finite values each"),
    "words as moments": (lambda: Samples(X, Y, None, None, ([1.0], ["a"])), "mean and std must have 1 finite values each"),
    "NaN": (lambda: Samples(X, Y, None, None, ([np.nan], [1.0])), "mean and std must have 1 finite values each"),
    "zero": (lambda: Samples(X, Y, None, None, ([0.0], [0.0])), "std must be above 0"),
}


@pytest.mark.parametrize("case", WRONG_READS)
def test_a_source_that_is_wrong_is_a_sentence(case):
    class Odd(DataSource):
        name = "odd"

        def read(self):
            return WRONG_READS[case][0]()

    with pytest.raises(UserError, match=f"^data.name = odd: .*{WRONG_READS[case][1]}") as refusal:
        load(Odd())
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(("title", "says"), [(3, "is 3"), (None, "is None"), ("a\nb", r"is 'a\\nb'")])
def test_a_sources_title_must_be_a_line(title, says):
    class Odd(DataSource):
        name = "odd"

        @property
        def title(self):
            return title

        def read(self):
            return Samples(X, Y)

    with pytest.raises(UserError, match=f"^dataset 'odd': title {says}; it must be a line of text"):
        load(Odd())


def test_arrays_in_any_order_of_memory_are_taken():
    class Odd(DataSource):
        name = "odd"

        def read(self):
            return Samples(X[::-1, :, ::-1], Y[::-1], ["a", "b"])

    data = load(Odd())
    assert data.classes == ("a", "b") and data.y.tolist() == Y[::-1].tolist()
    torch.from_numpy(data.x), torch.from_numpy(data.y)

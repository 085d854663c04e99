"""Files are whole or as they were, and what is not a file is left alone."""

import errno
import os

import pytest
import torch

from fedmrl.errors import UserError
from fedmrl.files import write_whole
from fedmrl.states import write_state


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_what_is_not_a_plain_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is not a regular file"):
        write_whole(tmp_path / "pipe", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_disk_that_is_full_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole(tmp_path / "file", "text")
    assert caught.value.filename == str(tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_a_state_that_cannot_be_written_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(OSError, match="state") as caught:
        write_state({"a": torch.zeros(1)}, tmp_path / "nowhere" / "state")
    assert caught.value.filename == str(tmp_path / "nowhere" / "state")

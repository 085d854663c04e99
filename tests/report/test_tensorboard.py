"""Rounds as TensorBoard's scalars."""

import builtins
import sys
from types import ModuleType

import pytest
from tiny import tiny_recipe

import fedmrl
from fedmrl.errors import UserError
from fedmrl.report.tensorboard import writing


class Writer:
    """Stands for TensorBoard's writer, which is not everywhere."""

    def __init__(self, folder):
        self.folder, self.written, self.closed = folder, {}, False
        Writer.last = self

    def add_scalar(self, name, value, step):
        self.written.setdefault(name, {})[step] = value

    def flush(self):
        pass

    def close(self):
        self.closed = True


@pytest.fixture
def _writer(monkeypatch):
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)


@pytest.mark.usefixtures("_writer")
def test_every_round_of_a_run_is_written_under_its_number(tmp_path):
    with writing(tmp_path / "board") as on_round:
        run = fedmrl.run(tiny_recipe(), on_round=on_round)
    board = Writer.last
    assert board.closed and board.folder == str(tmp_path / "board")
    assert board.written["loss"] == {record.round: record.loss for record in run.records}
    assert list(board.written["accuracy/all/aggregated/mix-large"]) == [2, 3], "where all clients were evaluated"
    assert board.written["communication/up/bytes"][1] == run.records[0].up.bytes
    assert {"flops", "seconds/train", "accuracy/participants/own/mix-large"} <= set(board.written)


@pytest.mark.usefixtures("_writer")
def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; name a folder"), writing(tmp_path / "file"):
        pass


def test_without_the_package_it_says_how_to_get_it(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "torch.utils.tensorboard":
            raise ModuleNotFoundError("No module named 'tensorboard'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'fedmrl\[tensorboard\]'"), writing(tmp_path / "board"):
        pass
    assert not (tmp_path / "board").exists()

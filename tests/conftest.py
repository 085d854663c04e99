"""What all tests share: one thread, so that two workers do not fight over two cores."""

import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # GPU kernels are then run by Triton's interpreter
torch.set_num_threads(1)
hypothesis.settings.register_profile("fedmrl", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("fedmrl")


@pytest.fixture
def cifar_dir() -> Path:
    """The folder with the official CIFAR files, named by FEDMRL_DATA."""
    folder = os.environ.get("FEDMRL_DATA")
    if not folder or not (Path(folder) / "cifar-10-batches-bin").is_dir():
        pytest.skip("FEDMRL_DATA names no folder with the official CIFAR files")
    return Path(folder)


@pytest.fixture
def fedmrl(monkeypatch, capsys, tmp_path):
    """Call the program in an empty folder; gives its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FEDMRL_DATA", raising=False)

    from fedmrl import cli
    from fedmrl.cli import terminal

    def call(*arguments):
        terminal.out.cache_clear()  # as in a new process, the width is that of the terminal now
        terminal.err.cache_clear()
        monkeypatch.setattr(sys, "argv", ["fedmrl", *map(str, arguments)])
        code = 0
        handler = signal.getsignal(signal.SIGTERM)
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            signal.signal(signal.SIGTERM, handler)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call

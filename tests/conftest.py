"""What all tests share: one thread, so that two workers do not fight over two cores."""

import os
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

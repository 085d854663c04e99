"""A commented recipe that fits a dataset, to start from."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmrl.data import Dataset
from fedmrl.data.partition import PartitionTable, partition
from fedmrl.errors import UserError

_MOST_CLIENTS, _SAMPLES_EACH = 10, 20
_CLASSES_EACH = 5


def starter(
    data: Dataset, files: Sequence[Path], folder: Path, clients: int | None = None, size: tuple[int, int] | None = None
) -> str:
    """The text of a recipe for this data, which was read from these files; the recipe will be in `folder`."""
    if data.owners is not None:
        if clients not in (None, len(data.owners)):
            raise UserError(
                f"clients is {clients}, and there are {len(data.owners)} files, one for each client; leave clients out"
            )
        clients, split = len(data.owners), ['kind = "own"                       # each file is the data of one client']
    else:
        clients, split = _split(data, clients)
    counts = np.bincount(data.y, minlength=len(data.classes))
    local, small, d1 = _models(data)
    kind, shape = data.preparation.kind, "×".join(map(str, data.shape))
    lines = [
        f"# {len(data.y):,} samples ({kind}, {shape}) in {len(data.classes)} classes, of {counts.min():,} to {counts.max():,} "
        f"samples: {_few(data.classes)}",
        *(f"# {_escaped(line)}" for line in data.notices),
        "",
        "rounds = 20",
        f"clients = {clients}",
        "participation = 1.0                # the share of the clients in a round",
        "",
        "[data]",
        'name = "files"',
        f"files = {json.dumps([_relative(file, folder) for file in files], ensure_ascii=False)}",
        *([f"label = {json.dumps(data.label, ensure_ascii=False)}"] if data.label is not None else []),
        *([f"size = {list(size)}"] if size is not None else []),
        '# standardise_from = "training"    # mean and std of training samples only; by default of all samples',
        "",
        "[partition]",
        *split,
        'test = "official"                  # the test samples that came with the data, distributed alike'
        if data.own_test
        else "test_share = 0.2                   # each client's share of samples for testing",
        "",
        "[models]",
        "local = [                          # clients get these in turn",
        *(f"  {model}," for model in local),
        "]",
        f"{f'small = {small}':<34} # the model that all clients share",
        "",
        "[method]",
        'name = "fedmrl"',
        f"{f'd1 = {d1}':<35}# at most the narrowest representation above",
        "",
        "[training]",
        "lr = 0.02",
        "momentum = 0.9",
        "clip = 12                          # largest gradient norm of each part of a client",
        f"batch_size = {10 if len(data.y) < 100 * clients else 32}",
        "epochs = 5",
        "",
        "[evaluation]",
        "every = 5                          # rounds between evaluations of all clients",
        "",
    ]
    return "\n".join(lines)


def _split(data: Dataset, asked: int | None) -> tuple[int, list[str]]:
    """The number of clients, and how samples are distributed: by class if there are enough of each."""
    classes = len(data.classes)
    most = asked or max(2, min(_MOST_CLIENTS, len(data.y) // _SAMPLES_EACH))
    for clients in range(most, 1, -1) if asked is None else (asked,):
        each = min(classes, max(_CLASSES_EACH, -(-classes // clients)))
        try:
            table = PartitionTable(kind="class", classes_per_client=each, test="official" if data.own_test else "split")
            partition(table, data, clients, seed=0)
        except UserError:
            continue
        return clients, [
            'kind = "class"                     # or dirichlet (alpha = 0.5), or iid',
            f"{f'classes_per_client = {each}':<35}# of {classes}",
        ]
    return most, ['kind = "iid"                       # each client has an equal part of each class']


def _models(data: Dataset) -> tuple[list[str], str, int]:
    """Local models of several sizes, the shared one, and d1."""
    if data.vocabulary is not None:
        start = f'{{ name = "text", vocabulary = {data.vocabulary}, embedding ='
        return [f"{start} 64, hidden = [64] }}", f"{start} 32, hidden = [32] }}"], f"{start} 16, hidden = [16] }}", 16
    if len(data.shape) == 3 and min(data.shape[1:]) >= 16:
        return (
            ["{ conv1 = 16, conv2 = 32, fc1 = 200, fc2 = 100 }", "{ conv1 = 8, conv2 = 16, fc1 = 100, fc2 = 64 }"],
            "{ conv1 = 8, conv2 = 16, fc1 = 64, fc2 = 32 }",
            32,
        )
    return ["{ hidden = [64, 32] }", "{ hidden = [128, 64] }", "{ hidden = [32] }"], "{ hidden = [16] }", 16


def _relative(file: Path, folder: Path) -> str:
    try:
        return os.path.relpath(file.absolute(), folder.absolute())
    except ValueError:  # on another drive
        return str(file.absolute())


def _escaped(line: str) -> str:
    """Text that stays within a TOML comment; file names may have line breaks."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (" …" if len(names) > 10 else "")

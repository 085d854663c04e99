"""Writing of rounds as TensorBoard scalars."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmrl.errors import UserError
from fedmrl.results import WHOSE, Record


@contextmanager
def writing(folder: Path) -> Iterator[Callable[[Record], None]]:
    """Yields `on_round(record)`, which writes a record's scalars; the first call creates the folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            f"--tensorboard needs the package tensorboard, which cannot be loaded here ({error}); "
            "get it with: pip install 'fedmrl[tensorboard]'"
        ) from error
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--tensorboard: {folder} is a file; name a folder")
    above = next(parent for parent in [folder, *folder.absolute().parents] if parent.exists())
    if not os.access(above, os.W_OK):
        raise UserError(f"--tensorboard: {folder} cannot be created; name another folder")
    writer: Any = None

    def on_round(record: Record) -> None:
        nonlocal writer
        writer = writer or SummaryWriter(str(folder))
        for name, value in scalars(record):
            writer.add_scalar(name, value, record.round)
        writer.flush()

    try:
        yield on_round
    finally:
        if writer is not None:
            writer.close()


def scalars(record: Record) -> Iterator[tuple[str, float]]:
    """The names and values of a round: loss, accuracies, parameters and bytes sent, FLOPs, seconds."""
    if record.loss is not None:
        yield "loss", record.loss
    for whose in WHOSE:
        for view, modes in means.items() if (means := record.accuracy[whose]) else ():
            for mode, accuracy in modes.items():
                yield f"accuracy/{whose}/{view}/{mode}", accuracy
    for way, sent in (("up", record.up), ("down", record.down)):
        yield f"communication/{way}/parameters", sent.parameters
        yield f"communication/{way}/bytes", sent.bytes
    yield "flops", record.flops
    if record.epsilon is not None:
        yield "epsilon", record.epsilon
    for what, seconds in record.seconds.items():
        yield f"seconds/{what}", seconds

"""What all peers have in common: the network, the federation, and what is reported. Needs torch and numpy only.

    FEDMRL_DATA=... python benchmarks/peers/common.py FOLDER ROUNDS    # writes FOLDER/federation.npz

Weights, participants and the order of every client's samples are fixed here, so that all peers end with the same global
model up to rounding: that is how a reader sees that they did the same work.

Legend of shapes: K clients, N samples of each, R rounds, M participants of a round, B batch, C classes.
"""

import argparse
import functools
import json
import os
import time
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

CLIENTS, PARTICIPANTS, BATCH, LR, SEED = 100, 10, 64, 0.01, 0
FILE = "federation.npz"


class CNN5(nn.Sequential):
    """The paper's CNN-5, its weights the same at every call."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            super().__init__(
                OrderedDict(
                    conv1=nn.Conv2d(3, 16, 5),
                    relu1=nn.ReLU(),
                    pool1=nn.MaxPool2d(2),
                    conv2=nn.Conv2d(16, 32, 5),
                    relu2=nn.ReLU(),
                    pool2=nn.MaxPool2d(2),
                    flatten=nn.Flatten(),
                    fc1=nn.Linear(800, 500),
                    relu3=nn.ReLU(),
                    fc2=nn.Linear(500, 500),
                    relu4=nn.ReLU(),
                    header=nn.Linear(500, 10),
                )
            )


@dataclass(frozen=True)
class Federation:
    """Everyone's data, and who takes part when."""

    x: Tensor
    """The training images, standardised once and for all: the least that a peer could spend on them."""
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    split_KN: NDArray[np.int64]
    schedule_RM: NDArray[np.int64]

    def samples(self, round_index: int, client: int) -> tuple[Tensor, Tensor]:
        """A client's images and labels in the order in which it sees them in this round.

        It is the order that fedmrl draws by itself (`fedmrl.data.plan`), so that the peers can be given the same.
        """
        key = [SEED, zlib.crc32(b"batches-train"), 2, round_index, client]
        order = torch.from_numpy(np.random.default_rng(key).permutation(self.split_KN[client]))
        return self.x[order], self.y[order]


def write(folder: Path, rounds: int) -> None:
    """CIFAR-10 as stored, an IID split in clients of 500 images each, and a schedule; the official test set is kept apart."""
    source = Path(os.environ.get("FEDMRL_DATA") or Path.home() / ".cache" / "fedmrl") / "cifar-10-batches-bin"
    files = [source / f"data_batch_{number}.bin" for number in range(1, 6)] + [source / "test_batch.bin"]
    records = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    x, y = records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
    train = 50_000
    by_channel = x[:train].transpose(1, 0, 2, 3).reshape(3, -1)
    rng = np.random.default_rng(SEED)
    np.savez(
        folder / FILE,
        x=x[:train],
        y=y[:train],
        x_test=x[train:],
        y_test=y[train:],
        mean=by_channel.mean(axis=1),
        std=by_channel.std(axis=1),
        split=np.sort(rng.permutation(train).reshape(CLIENTS, -1), axis=1),
        schedule=np.stack([np.sort(rng.choice(CLIENTS, PARTICIPANTS, replace=False)) for _ in range(rounds)]),
    )


@functools.cache
def read(folder: Path) -> Federation:
    """What `write` wrote. Cached, for workers that read it when their first message comes."""
    with np.load(folder / FILE) as archive:
        mean, std = (torch.from_numpy(archive[name]).float().reshape(3, 1, 1) for name in ("mean", "std"))
        x, x_test = (torch.from_numpy(archive[name]).float().sub_(mean).div_(std) for name in ("x", "x_test"))
        y, y_test = (torch.from_numpy(archive[name]) for name in ("y", "y_test"))
        return Federation(x, y, x_test, y_test, archive["split"], archive["schedule"])


@functools.cache
def net() -> CNN5:
    """One network for each process, that a worker loads weights into instead of building a new one for each client."""
    return CNN5()


def parser(doc: str | None) -> argparse.ArgumentParser:
    """What every peer's script takes."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, required=True, help=f"where {FILE} is")
    options.add_argument("--warm-up", type=int, default=2, help="rounds that are not timed, one at least")
    options.add_argument("--rounds", type=int, default=5, help="rounds that are timed")
    options.add_argument("--threads", type=int, default=2, help="torch's threads in each process that trains")
    options.add_argument("--started", type=float, default=time.time(), help="when the process was started, for the start-up")
    options.add_argument("--reference", type=Path, help="weights to compare the result with; written if not there yet")
    return options


def report(
    arguments: argparse.Namespace, weights: Mapping[str, Tensor], stamps: Sequence[float], samples: Sequence[int], **more: Any
) -> None:
    """Print one line of JSON. `stamps` are the times at which the first round began and at which each round ended."""
    seconds = np.diff(stamps).tolist()
    result = {
        "start_up_seconds": stamps[0] - arguments.started,
        "warm_up_seconds": seconds[: arguments.warm_up],
        "round_seconds": seconds[arguments.warm_up :],
        "samples": list(samples[arguments.warm_up :]),
        **_tested(read(arguments.folder), weights),
        "threads": arguments.threads,
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
    }
    plain = {name: tensor.detach().numpy() for name, tensor in weights.items()}
    # The scale on which a difference between two peers is small or large.
    first = CNN5().state_dict()
    result["largest_change"] = max(float(abs(first[name].numpy() - plain[name]).max()) for name in first)
    if arguments.reference is not None:
        if not arguments.reference.is_file():
            np.savez(arguments.reference, **plain)
        with np.load(arguments.reference) as reference:
            result["largest_difference"] = max(float(abs(reference[name] - plain[name]).max()) for name in reference)
    result["versions"] |= more.pop("versions", {})
    print(json.dumps(result | more), flush=True)


@torch.no_grad()
def _tested(federation: Federation, weights: Mapping[str, Tensor]) -> dict[str, float]:
    """Loss and accuracy of the global model on the official test set."""
    model = net()
    model.load_state_dict(weights)
    logits_BC = torch.cat([model(x) for x in federation.x_test.split(500)])
    right = (logits_BC.argmax(dim=1) == federation.y_test).float().mean()
    return {"test_loss": float(F.cross_entropy(logits_BC, federation.y_test)), "test_accuracy": float(right)}


if __name__ == "__main__":
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("folder", type=Path)
    given.add_argument("rounds", type=int)
    options = given.parse_args()
    write(options.folder, options.rounds)

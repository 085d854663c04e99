"""FedAvg by fedmrl: the control that the peers are compared with.

python benchmarks/peers/ours.py --folder FOLDER [--engine reference]    # prints one line of JSON; see run.py
"""

import json
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import common
import numpy as np
import torch
from torch import Tensor

import fedmrl
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulation import Simulation
from fedmrl.methods import Batch, ClientNet, WeightSharing
from fedmrl.methods.base import cross_entropy


class FedAvg(WeightSharing):
    """The whole model is averaged (McMahan et al., 2017)."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    summary: ClassVar[str] = "the whole model is averaged"
    shares: ClassVar[tuple[str, ...]] = ("local",)

    def loss(self, net: ClientNet, batch: Batch) -> Tensor:
        """CE(local)."""
        return batch.mean(cross_entropy(net.local(batch.x), batch.y_B))


def recipe(folder: Path, rounds: int, scratch: Path) -> fedmrl.Recipe:
    """The setting of `common` as a recipe."""
    with np.load(folder / common.FILE) as archive:
        split, who, train = archive["split"], archive["schedule"][:rounds], len(archive["y"])
        mean, std, test = archive["mean"].tolist(), archive["std"].tolist(), len(archive["y_test"]) // common.CLIENTS
    # fedmrl wants test samples of every client. What it spends on them in a round is taken off below.
    clients = [
        {"train": own.tolist(), "test": list(range(train + k * test, train + (k + 1) * test))} for k, own in enumerate(split)
    ]
    (scratch / "split.json").write_text(json.dumps(clients))
    (scratch / "schedule.json").write_text(json.dumps(who.tolist()))
    settings = {
        "seed": common.SEED,
        "rounds": rounds,
        "clients": common.CLIENTS,
        "participation": str(scratch / "schedule.json"),
        "data.name": "arrays",
        "data.file": str(folder / common.FILE),
        "data.mean": mean,
        "data.std": std,
        "partition.kind": "given",
        "partition.file": str(scratch / "split.json"),
        "training.lr": common.LR,
        "training.momentum": 0.0,
        "training.batch_size": common.BATCH,
        "training.epochs": 1,
        "evaluation.every": rounds,
    }
    given = fedmrl.load_recipe("paper/cifar10-n100", settings)
    return given.model_copy(update={"method": FedAvg()})


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--engine", default="reference", help="which of fedmrl's engines trains")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    rounds = arguments.warm_up + arguments.rounds
    with tempfile.TemporaryDirectory() as scratch:
        chosen = recipe(arguments.folder, rounds, Path(scratch))
        models = [fedmrl.OwnModel("CNN-5", common.CNN5, last="header")] * common.CLIENTS
        setting = prepare(chosen, torch.device("cpu"), models)
        federation = Simulation(chosen, setting, arguments.engine)
    stamps, samples, new = [time.time()], [], []
    for _ in range(rounds):
        joined = set(federation.now.last_round)
        started = time.perf_counter()
        federation.now = federation.next_round()
        record = federation.now.records[-1]
        # The peers do not evaluate, so that what fedmrl spends on it is no part of the round.
        stamps.append(stamps[-1] + time.perf_counter() - started - record.seconds["evaluate"])
        samples.append(sum(len(setting.subsets(client)["train"]) for client in record.participants))
        new.append(len(set(record.participants) - joined))
    weights = {name.removeprefix("local.").removeprefix("extractor."): tensor for name, tensor in federation.now.server.items()}
    more = {"new_clients": new[arguments.warm_up :], "versions": {"fedmrl": version("fedmrl")}}
    common.report(arguments, weights, stamps, samples, processes=1, **more)


if __name__ == "__main__":
    main()

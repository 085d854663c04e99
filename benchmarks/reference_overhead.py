"""What the reference engine costs over a plain loop: FedMRL on CIFAR-10, N=10, C=100%, one epoch, d1=100.

    FEDMRL_DATA=... python benchmarks/reference_overhead.py [--rounds 5] [--out results/reference-overhead.json]

Both train and evaluate the same models on the same samples with the same batch size and rate. The plain loop is what one
would write by hand for this one case: images standardised once and for all, models that stay in memory, no states, no
messages. Rounds of the two take turns in one process; the medians and their ratio are reported.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmrl import load_recipe
from fedmrl.engines import Setting
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulation import Simulation
from fedmrl.models import Split

SETTINGS = {"rounds": 100, "training.epochs": 1, "training.batch_size": 64, "method.d1": 100, "evaluation.every": 1000}


class PlainClient:
    """A client as a script would have it: three modules and its own standardised images."""

    def __init__(self, setting: Setting, client: int) -> None:
        shape, classes = setting.data.shape, len(setting.data.classes)
        self.local: Split = setting.members[client].model.build(shape, classes)
        self.small: Split = setting.terms.common.small.with_dim(100).build(shape, classes)
        self.projector = nn.Linear(100 + self.local.dim, self.local.dim)
        mean, std = (torch.tensor(v, dtype=torch.float32).reshape(3, 1, 1) for v in (setting.data.mean, setting.data.std))
        own = setting.members[client]
        self.x, self.test_x = ((torch.from_numpy(setting.data.x[p]).float() - mean) / std for p in (own.train, own.test))
        self.y, self.test_y = (torch.from_numpy(setting.data.y[p]) for p in (own.train, own.test))

    def fused(self, x: Tensor) -> Tensor:
        fused: Tensor = self.projector(torch.cat([self.small.extractor(x), self.local.extractor(x)], dim=1))
        return fused

    def train(self) -> None:
        parameters = [*self.local.parameters(), *self.small.parameters(), *self.projector.parameters()]
        optimiser = torch.optim.SGD(parameters, lr=0.01)
        for batch in torch.split(torch.randperm(len(self.y)), 64):
            fused, y = self.fused(self.x[batch]), self.y[batch]
            loss = F.cross_entropy(self.small.header(fused[:, :100]), y) + F.cross_entropy(self.local.header(fused), y)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()

    @torch.no_grad()
    def accuracy(self) -> float:
        right = 0
        for x, y in zip(torch.split(self.test_x, 500), torch.split(self.test_y, 500), strict=True):
            right += int((self.local.header(self.fused(x)).argmax(dim=1) == y).sum())
        return right / len(self.test_y)


def plain_round(clients: list[PlainClient]) -> tuple[float, float]:
    """Seconds of training (and averaging), and of evaluating before and after the average."""
    started = time.perf_counter()
    for client in clients:
        client.train()
    trained = time.perf_counter()
    for client in clients:
        client.accuracy()
    evaluated = time.perf_counter()
    total = sum(len(client.y) for client in clients)
    with torch.no_grad():
        average = {
            name: sum(len(c.y) / total * c.small.state_dict()[name] for c in clients) for name in clients[0].small.state_dict()
        }
        for client in clients:
            client.small.load_state_dict(average)
    averaged = time.perf_counter()
    for client in clients:
        client.accuracy()
    return trained - started + averaged - evaluated, evaluated - trained + time.perf_counter() - averaged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    recipe = load_recipe("paper/cifar10-n10", SETTINGS)
    setting = prepare(recipe, torch.device("cpu"))
    federation = Simulation(recipe, setting, "reference")
    clients = [PlainClient(setting, k) for k in range(recipe.clients)]
    engine, plain = [], []
    for number in range(arguments.rounds + 1):
        federation.now = federation.next_round()
        seconds = federation.now.records[-1].seconds
        measured = (seconds["train"] + seconds["aggregate"], seconds["evaluate"]), plain_round(clients)
        print(f"round {number}: engine {measured[0]}, plain {measured[1]}", flush=True)
        if number:  # the first warms up
            engine.append(measured[0])
            plain.append(measured[1])
    result = {"command": "python benchmarks/reference_overhead.py", "rounds": arguments.rounds, "threads": 2}
    result |= {"device": f"{platform.machine()} CPU", "torch": torch.__version__}
    for number, what in enumerate(("train", "evaluate")):
        result[what] = {who: statistics.median(r[number] for r in rows) for who, rows in (("engine", engine), ("plain", plain))}
    totals = {who: statistics.median(sum(r) for r in rows) for who, rows in (("engine", engine), ("plain", plain))}
    result["round"] = {**totals, "engine_over_plain": totals["engine"] / totals["plain"]}
    print(json.dumps(result, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

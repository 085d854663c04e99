"""A federation over a network: seconds a round and CPU seconds a message, fedmrl's against a bare Flower app.

    python benchmarks/federation.py [--rounds 10] [--turns 3] [--out results/federation.json]

Three clients on digits, each with another CNN, on this machine, over TLS with registered keys. Both sides train FedMRL's
network (the client's CNN, the small one and the projector) for the same steps, and the server averages the small networks. The
bare app is written as Flower's quickstart: the ClientApp has network, data and training, and the server is Flower's FedAvg. In
ours the ClientApp passes the message to the agent. The two sides run in turns on the same SuperLink and SuperNodes.

Seconds are those from round to round, without the first and the last round. CPU seconds are those of the clients' processes
(SuperNodes, ClientApps and agents) in these rounds, divided by the messages that clients got.
"""

import argparse
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import fedmrl
import fedmrl.data.sources
from fedmrl.config import ModelsTable, Recipe
from fedmrl.cpu import cpu_name
from fedmrl.flower.deal import deal
from fedmrl.flower.local import LocalFederation
from fedmrl.flower.server_folder import run_recipe
from fedmrl.models.cnn import CNN

CLIENTS = 3
PATIENCE = 3600.0  # seconds until a run that does not end is given up
TICKS = os.sysconf("SC_CLK_TCK")
SETTINGS = {
    "clients": CLIENTS,
    "participation": 1.0,
    "partition.classes_per_client": 8,
    "models.local": ["cnn-3", "cnn-4", "cnn-5"],
    "models.small": "cnn-5",
}

PROJECT = """\
[project]
name = "bare"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "benchmark"

[tool.flwr.app.components]
serverapp = "bare.server_app:app"
clientapp = "bare.client_app:app"

[tool.flwr.app.config]
out = ""
rounds = 0
epochs = 0
batch-size = 0
lr = 0.0
momentum = 0.0
clip = 0.0
"""

TASK = '''\
"""FedMRL's network, and a client's data and training."""

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Split(nn.Module):
    """A CNN: an extractor and a header."""

    def __init__(self, conv1, conv2, fc1, fc2, shape, classes):
        super().__init__()
        channels, height, width = shape
        flat = conv2 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.extractor = nn.Sequential(
            nn.Conv2d(channels, conv1, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(conv1, conv2, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
            nn.Linear(flat, fc1), nn.ReLU(), nn.Linear(fc1, fc2), nn.ReLU(),
        )
        self.header = nn.Linear(fc2, classes)


class Net(nn.Module):
    """The client's own network, the small one that all share, and the projector."""

    def __init__(self, local, small, shape, classes):
        super().__init__()
        self.local, self.small = Split(**local, shape=shape, classes=classes), Split(**small, shape=shape, classes=classes)
        self.projector = nn.Linear(small["fc2"] + local["fc2"], local["fc2"])

    def loss(self, x, y):
        fused = self.projector(torch.cat([self.small.extractor(x), self.local.extractor(x)], dim=-1))
        coarse = self.small.header(fused[:, : self.small.header.in_features])
        return F.cross_entropy(coarse, y) + F.cross_entropy(self.local.header(fused), y)


def net_in(folder):
    return Net(**json.loads((folder / "net.json").read_text()))


def load_data(folder):
    with np.load(folder / "data.npz") as arrays:
        x = torch.from_numpy(arrays["x"]).float()
        return (x - x.mean()) / x.std(), torch.from_numpy(arrays["y"])


def train(net, x, y, config):
    torch.set_num_threads(1)
    optimiser = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=config["momentum"])
    for _ in range(config["epochs"]):
        for part in torch.randperm(len(y)).split(config["batch-size"]):
            optimiser.zero_grad()
            loss = net.loss(x[part], y[part])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), config["clip"])
            optimiser.step()
    return loss.item()
'''

CLIENT_APP = """\
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bare.task import load_data, net_in
from bare.task import train as train_net

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    folder = Path(context.node_config["socket"]).parent
    net = net_in(folder)
    if "net" in context.state:  # what is the client's own stays with its SuperNode
        net.load_state_dict(context.state["net"].to_torch_state_dict())
    net.small.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load_data(folder)
    loss = train_net(net, x, y, context.run_config)
    context.state["net"] = ArrayRecord(net.state_dict())
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(net.small.state_dict()), "metrics": metrics}), reply_to=message)
"""

SERVER_APP = """\
import json
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from bare.task import Split

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    out = Path(context.run_config["out"])
    known = json.loads(out.with_name("net.json").read_text())
    small = Split(**known["small"], shape=known["shape"], classes=known["classes"])

    def told(server_round, arrays):
        with out.open("a") as file:
            file.write(f"{server_round}\\n")

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(small.state_dict()), num_rounds=context.run_config["rounds"], evaluate_fn=told
    )
""".replace("CLIENTS", str(CLIENTS))


class Measured(NamedTuple):
    """A run's seconds for each round, and CPU seconds for each message."""

    seconds: list[float]
    cpu: float


def client_processes(local: LocalFederation) -> list[Path]:
    """The processes of the clients' side: those with the home folder of a SuperNode, and agents."""
    homes = [f"FLWR_HOME={client.node}".encode() for client in local.clients]
    agents = {process.pid for process in local.agents.values()}
    found = []
    for pid in local.descendants():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if pid in agents or any(home in environment for home in homes):
            found.append(Path(f"/proc/{pid}/stat"))
    return found


def cpu_seconds(local: LocalFederation) -> float:
    """CPU time of the clients' processes, with that of their children that have ended."""
    ticks = 0
    for path in client_processes(local):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


def measured(local: LocalFederation, rounds: int, done: Callable[[], int]) -> Measured:
    """Follows a run, of which `done` counts the complete rounds, from its first round to the last but one."""
    stamps: list[float] = []
    before, until = 0.0, time.monotonic() + PATIENCE
    while len(stamps) < rounds - 1:
        if time.monotonic() > until:
            raise SystemExit("a run did not end; see its log in the folder of the federation")
        if done() > len(stamps):
            stamps.append(time.monotonic())
            if len(stamps) == 1:
                before = cpu_seconds(local)
        time.sleep(0.05)
    cpu = cpu_seconds(local) - before
    seconds = [later - earlier for earlier, later in pairwise(stamps)]
    return Measured(seconds, cpu / (len(seconds) * CLIENTS))


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def ours(local: LocalFederation, recipe: Recipe, name: str) -> Measured:
    """A run of fedmrl's."""
    run_id = local.server.run(name, run_recipe(recipe, CLIENTS))
    found = measured(local, recipe.rounds, lambda: lines(local.server.runs / name / "rounds.jsonl"))
    if (status := local.wait(name, run_id, PATIENCE)) != "completed":
        raise SystemExit(f"{name} {status}: {local.server.log(name)}")
    return found


def bare(local: LocalFederation, recipe: Recipe, name: str) -> Measured:
    """A run of the bare app."""
    app, out = local.folder / "bare", local.folder / f"{name}.rounds"
    training = recipe.training
    config = {
        "out": str(out), "rounds": recipe.rounds, "epochs": training.epochs, "batch-size": training.batch_size,
        "lr": training.lr, "momentum": training.momentum, "clip": float(training.clip or 1e9),
    }  # fmt: skip
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    run_id = str(local.server._flwr("run", str(app), "--run-config", words)["run-id"])
    found = measured(local, recipe.rounds, lambda: lines(out) - 1)  # it is called before the first round, too
    if (status := local.wait(name, run_id, PATIENCE)) != "completed":
        raise SystemExit(f"{name} {status}")
    return found


def write_bare(local: LocalFederation, recipe: Recipe) -> None:
    """Writes the bare app, and beside each client's data the widths of its network."""
    package = local.folder / "bare" / "bare"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(PROJECT)
    for name, code in {"__init__": "", "task": TASK, "client_app": CLIENT_APP, "server_app": SERVER_APP}.items():
        (package / f"{name}.py").write_text(code)
    data = fedmrl.data.sources.load(recipe.data)
    models = [*recipe.models.of_clients(CLIENTS), ModelsTable(local=["cnn-5"]).kinds[0]]
    widths = []
    for model in models:
        assert isinstance(model, CNN)
        widths.append({key: getattr(model, key) for key in ("conv1", "conv2", "fc1", "fc2")})
    small = widths.pop() | {"fc2": recipe.method.model_dump()["d1"]}
    for folder, own in zip([*(client.path for client in local.clients), local.folder], [*widths, small], strict=True):
        known = {"local": own, "small": small, "shape": list(data.shape), "classes": len(data.classes)}
        (folder / "net.json").write_text(json.dumps(known))


def measure(rounds: int, turns: int) -> dict[str, object]:
    """Both sides in turns."""
    # Evaluations of the server's new state are messages of their own; the last round alone has them.
    recipe = fedmrl.load_recipe("quickstart", {**SETTINGS, "rounds": rounds, "evaluation.every": rounds})
    found: dict[str, list[Measured]] = {"ours": [], "bare": []}
    with TemporaryDirectory() as folder:
        clients = deal(recipe, Path(folder) / "clients")
        with LocalFederation(Path(folder) / "federation", clients, {"min_clients": CLIENTS}) as local:
            local.start()
            write_bare(local, recipe)
            for turn in range(turns):
                for side, run in (("ours", ours), ("bare", bare)):
                    found[side].append(run(local, recipe, f"{side}-{turn}"))
                    print(f"{side}, turn {turn + 1}: {found[side][-1]}", file=sys.stderr, flush=True)
    return {
        "device": cpu_name(),
        "flwr": version("flwr"),
        "settings": {**SETTINGS, "rounds": rounds},
        "seconds_a_round": {side: statistics.median(s for run in runs for s in run.seconds) for side, runs in found.items()},
        "cpu_seconds_a_message": {side: statistics.median(run.cpu for run in runs) for side, runs in found.items()},
        "runs": {side: [run._asdict() for run in runs] for side, runs in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of each run; at least 3")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.rounds < 3:
        parser.error("--rounds must be at least 3, as the first and the last do not count")
    command = shlex.join(["python", "benchmarks/federation.py", *sys.argv[1:]])
    result = {"command": command, **measure(arguments.rounds, arguments.turns)}
    print(json.dumps({key: value for key, value in result.items() if key != "runs"}, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Small organisations for tests: the recipe, each client's folder as its TOML says it, and a peer that talks to an agent."""

import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import tomli_w
import torch

from fedmrl import load_recipe
from fedmrl.federation.setup import prepare
from fedmrl.flower.agent import Agent
from fedmrl.flower.client_config import load_organisation
from fedmrl.flower.frame import exchange
from fedmrl.flower.protocol import Evaluate, Hello, HelloOk, Train, read_reply, to_bytes, to_tensors
from fedmrl.methods import METHODS

CPU = torch.device("cpu")
CNNS = [
    {"conv1": 3, "conv2": 4, "fc1": 12, "fc2": 8},
    {"conv1": 4, "conv2": 3, "fc1": 10, "fc2": 8},
    {"conv1": 2, "conv2": 5, "fc1": 9, "fc2": 8},
]


def small_quickstart(method="fedmrl", **settings):
    changes = {
        "method.name": method, "rounds": 2, "clients": 3, "participation": 1.0, "models.local": CNNS, "training.epochs": 1,
        "partition.set_aside": 1500, **({"method.d1": 6} if method == "fedmrl" else {}),
    }  # fmt: skip
    return load_recipe("quickstart", changes | {key.replace("__", "."): value for key, value in settings.items()})


def write_client(folder, setting, client, **changes):
    """An organisation's folder with a client's samples, in the order that they have in the whole dataset."""
    folder.mkdir(parents=True)
    member = setting.members[client]
    own = np.sort(np.concatenate([member.train, member.test]))
    np.savez(folder / "data.npz", x=setting.data.x[own], y=setting.data.y[own])
    bounds = {"methods": sorted(METHODS), "leaves": ["small.", "local.header.", "classes", "outputs", "prototypes", "counts"]}
    plain = {
        "name": f"organisation {client}", "model": CNNS[client % len(CNNS)], "data": "data.npz",
        "classes": len(setting.data.classes),
        "standardise": {"mean": setting.data.mean.tolist(), "std": setting.data.std.tolist()},
        "device": "cpu",
        **changes, "bounds": {**bounds, **changes.get("bounds", {})},
    }  # fmt: skip
    path = folder / "client.toml"
    path.write_text(tomli_w.dumps(plain))
    return path


@contextmanager
def serving(path):
    """An agent that serves in a thread."""
    with Agent(load_organisation(path)) as agent:
        thread = threading.Thread(target=agent.serve)
        thread.start()
        try:
            yield agent
        finally:
            agent.close()
            thread.join()


class Peer:
    """What talks to an agent: a server without Flower."""

    def __init__(self, agent, recipe, client=0, run="r"):
        self.agent, self.recipe, self.client, self.run = agent, recipe, client, run
        self.socket, self.sent, self.received = agent.config.socket, b"", b""

    def ask(self, request, content=None):
        return self.ask_bytes(to_bytes(request, content))

    def ask_bytes(self, data):
        self.sent = data
        self.received = exchange(self.socket, data, 60)
        reply, arrays = read_reply(self.received)
        return reply, to_tensors(arrays)

    def hello(self, **changes):
        asked = {"run": self.run, "client": self.client, "recipe": self.recipe.to_toml(), **changes}
        return self.ask(Hello(**asked))[0]

    def held(self):
        """The rounds after which the agent has a state of this run, after a hello."""
        assert isinstance(found := self.hello(), HelloOk), found
        return self.agent._run.states.index.held

    def train(self, round_, since, content, earlier=None, **changes):
        earlier = (0 if since is None else since + 1) if earlier is None else earlier
        asked = {"run": self.run, "round": round_, "rounds": self.recipe.rounds, "since": since, "earlier": earlier, **changes}
        return self.ask(Train(**asked), content)

    def evaluate(self, since, content, modes=None, **changes):
        modes = modes or self.recipe.recorded_modes
        asked = {"run": self.run, "since": since, "content": content is not None, "modes": modes, **changes}
        return self.ask(Evaluate(**asked), content)[0]


@contextmanager
def federation(folder, recipe):
    """A setting, and a peer for each of its clients, whose agents serve."""
    setting = prepare(recipe, CPU)
    with ExitStack() as stack:
        peers = [
            Peer(stack.enter_context(serving(write_client(folder / str(k), setting, k))), recipe, k) for k in setting.members
        ]
        yield setting, peers


def files(folder):
    """All files of a folder but the lock."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "agent.lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

"""A federation without Flower's processes: a grid in memory that passes messages through the shim to agents' sockets."""

from contextlib import ExitStack, contextmanager
from threading import Thread
from types import SimpleNamespace

from cryptography.hazmat.primitives import serialization
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from organisations import serving

from fedmrl.federation.launch import pick_device
from fedmrl.federation.server import Federation, run_in_step
from fedmrl.federation.setup import prepare, schedule, terms_elsewhere
from fedmrl.federation.simulation import Simulation
from fedmrl.flower.certificates import fingerprint_in, make_node_key
from fedmrl.flower.deal import deal
from fedmrl.flower.flower_clients import FlowerClients, Members
from fedmrl.flower.grid import Post
from fedmrl.flower.registration import read_registered, register
from fedmrl.flower.server_config import ServerConfig
from fedmrl.flower.server_folder import run_recipe
from fedmrl.flower.shim import forward, frame_of, record

CONFIG = ServerConfig(hosts=["localhost"], min_clients=2, wait_seconds=5, round_seconds=30, pause_seconds=0, max_norm=1e4)


class MemoryGrid:
    """Flower's grid, as far as `Post` uses it. `change` may replace a reply's bytes, or be an error's message."""

    def __init__(self):
        self.nodes, self.sockets, self.replies = {}, {}, {}
        self.change = lambda client, kind, group, frame: frame
        self.asked = []

    def add(self, client, key, socket):
        pem = serialization.load_ssh_public_key(key.read_bytes()).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        # An id that has nothing to do with the client's number, as Flower's have.
        self.nodes[1000 - client] = SimpleNamespace(node_id=1000 - client, public_key=pem)
        self.sockets[1000 - client] = (client, socket)

    def get_nodes(self):
        return list(self.nodes.values())

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(message.metadata.__dict__.setdefault("_message_id", "") or f"m{len(self.asked)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.asked.append(message)
            Thread(target=self._deliver, args=(message,)).start()
        return ids

    def _deliver(self, message):
        client, socket = self.sockets[message.metadata.dst_node_id]
        reply = forward(message, Context(1, message.metadata.dst_node_id, {"socket": str(socket)}, RecordDict(), {}))
        if not reply.has_error():
            changed = self.change(client, message.metadata.message_type, message.metadata.group_id, frame_of(reply.content))
            reply = None if changed is None else Message(record(changed), reply_to=message)
        if reply is not None:
            self.replies[message.metadata.message_id] = reply

    def pull_messages(self, ids):
        return [self.replies.pop(one) for one in ids if one in self.replies]


class InProcess:
    """The server's side of a federation whose agents serve in threads."""

    def __init__(self, folder, recipe, paths, config=CONFIG):
        self.recipe = run_recipe(recipe, len(paths))
        self.grid, self.said = MemoryGrid(), []
        self.list, self.keys = folder / "clients.json", []
        for path in paths:
            make_node_key(path / "key")
            self.keys.append(path / "key.pub")
            register(self.list, path.name, fingerprint_in(path / "key.pub"))
        self.paths, self.config = paths, config
        self.clients = self.server(Members(run="r"))

    def server(self, members):
        def registered():
            return read_registered(self.list)

        data = self.recipe.data
        self.terms = terms_elsewhere(self.recipe, data.shape, data.classes, data.vocabulary)
        post = Post(self.grid, registered)
        return FlowerClients(post, registered, self.recipe, self.terms, self.config, members, self.said.append)

    def connect(self, number):
        self.grid.add(number, self.keys[number], self.paths[number] / "agent.sock")

    def federation(self, **keys):
        who = schedule(self.recipe, list(self.clients.roster()))
        return Federation(self.recipe, self.terms, self.clients, who, ran_on=("reference", "cpu"), **keys)

    def run(self):
        """Runs to the end, with clients joining between rounds."""
        self.clients.gather(self.config.min_clients, self.config.wait_seconds)
        return run_in_step(self.clients, [self.federation()], lambda _: self.clients.admit())[0]


@contextmanager
def in_process(folder, recipe, monkeypatch, connected=None, config=CONFIG, paths=None):
    """An `InProcess` with these clients connected, by default all; their folders are `paths`, or dealt from the recipe."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    paths = paths or deal(recipe, folder / "clients")
    with ExitStack() as agents:
        served = [agents.enter_context(serving(path / "client.toml")) for path in paths]
        made = InProcess(folder, recipe, paths, config)
        made.agents = served
        for number in range(len(paths)) if connected is None else connected:
            made.connect(number)
        yield made


def simulated(recipe, models=None):
    """What the reference engine gives on this machine alone."""
    return Simulation(recipe, prepare(recipe, pick_device("cpu"), models), "reference").run()


def same_numbers(network, reference):
    """Everything that is not time or place."""
    for one, other in zip(network.records, reference.records, strict=True):
        left, right = one.plain(), other.plain()
        for key in ("round", "asked", "participants", "loss", "accuracy", "up", "down", "flops"):
            assert left[key] == right[key], (key, left["round"])
    assert network.accuracy == reference.accuracy
    assert network.inference == reference.inference
    assert network.communication == reference.communication
    assert network.clients.rows() == reference.clients.rows()

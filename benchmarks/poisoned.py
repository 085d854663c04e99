"""What one lying client in ten does to FedMRL, by aggregation rule: accuracy of the honest clients.

    python benchmarks/poisoned.py --seeds 0,1,2 --out results/poisoned.json
    python benchmarks/poisoned.py --network --out results/poisoned-network.json

Ten clients, all in every round, one of which is honest to itself but sends the server something else: its weights times -10
(`flipped`), or noise of their size (`noise`). Results are written as they come.

With `--network` five clients on Flower, with TLS and registered keys, do the same with flipped weights, which the liar's agent
sends, and the first of the seeds. Each run is compared with a simulation of the same lie.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import torch

import fedmrl
from fedmrl.engines import Setting
from fedmrl.federation.clients import NoReply, Reply, Request
from fedmrl.federation.launch import pick_device
from fedmrl.federation.server import Federation
from fedmrl.federation.setup import prepare, schedule
from fedmrl.federation.simulated import SimulatedClients
from fedmrl.flower.agent import Agent
from fedmrl.flower.client_config import load_organisation
from fedmrl.flower.client_folder import ClientFolder
from fedmrl.flower.deal import deal
from fedmrl.flower.frame import Frame, decode, encode
from fedmrl.flower.local import LocalFederation
from fedmrl.flower.server_folder import run_recipe
from fedmrl.messages import Tensors
from fedmrl.methods import Round
from fedmrl.randomness import generator
from fedmrl.results import RunResult

LIAR = 0
SETTINGS = {"clients": 10, "participation": 1.0, "rounds": 10, "training.epochs": 2, "evaluation.every": 10}
RULES = ("mean", "median", "trimmed-mean", "krum")


class OneLies(SimulatedClients):
    """Simulated clients, of which one sends something else than it has learned."""

    def __init__(self, setting: Setting, attack: str, seed: int) -> None:
        super().__init__([setting])
        self._attack, self._seed = attack, seed

    def train(self, round_: Round, requests: Sequence[Request], upcoming: Sequence[Request] = ()) -> list[Reply | NoReply]:
        """As they train, with the liar's upload replaced."""
        replies = super().train(round_, requests, upcoming)
        for reply in replies:
            if isinstance(reply, Reply) and reply.client == LIAR:
                reply.upload.update(self._lie(reply.upload, round_))
        return replies

    def _lie(self, upload: Tensors, round_: Round) -> Tensors:
        if self._attack == "flipped":
            return {name: tensor * -10 for name, tensor in upload.items()}
        if self._attack == "noise":
            rng = generator(self._seed, "noise", round_.index)
            draws = {name: torch.from_numpy(rng.normal(size=tuple(tensor.shape))) for name, tensor in upload.items()}
            return {name: draws[name].to(tensor) * tensor.square().mean().sqrt() for name, tensor in upload.items()}
        return {}


def accuracy(rule: str, attack: str, seed: int, clients: int = 10) -> float | None:
    """Of the honest clients with the server's last small model, on average; None if training diverged."""
    recipe = fedmrl.load_recipe("quickstart", {**SETTINGS, "clients": clients, "seed": seed, "aggregation.rule": rule})
    setting = prepare(recipe, pick_device("cpu"))
    simulated = OneLies(setting, attack, seed)
    try:
        result = Federation(recipe, setting.terms, simulated, schedule(recipe)).run()
    except fedmrl.DivergedError:
        return None
    finally:
        simulated.close()
    return statistics.mean(own.accuracy for own in result.clients if own.client != LIAR)


def flipped(upload: Frame) -> Frame:
    """A message with its tensors times -10."""
    return Frame(upload.message, {name: array * -10 for name, array in upload.arrays.items()})


@contextmanager
def lying_agent(client: ClientFolder) -> Iterator[None]:
    """The agent of a client that sends something else than it has learned."""
    with Agent(load_organisation(client.config_file)) as agent:
        honest = agent.listener.handle

        def handle(data: bytearray, uid: int) -> bytes:
            reply = honest(data, uid)
            return encode(flipped(frame)) if (frame := decode(reply)).message["type"] == "train-ok" else reply

        agent.listener.handle = handle
        thread = Thread(target=agent.serve)
        thread.start()
        try:
            yield
        finally:
            agent.close()
            thread.join()


def over_network(seed: int) -> dict[str, dict[str, object]]:
    """By rule, the honest clients' accuracy over the network and in a simulation."""
    settings = {**SETTINGS, "clients": 5, "seed": seed}
    recipe = fedmrl.load_recipe("quickstart", settings)
    found: dict[str, dict[str, object]] = {}
    with TemporaryDirectory() as folder:
        clients = deal(recipe, Path(folder) / "clients")
        with LocalFederation(Path(folder) / "federation", clients, {"min_clients": 5}) as local:
            local.start_server()
            for number in range(5):
                local.register(number)
                if number != LIAR:
                    local.start_agent(number)
                local.start_supernode(number)
            with lying_agent(local.clients[LIAR]):
                for rule in RULES:
                    own = fedmrl.load_recipe("quickstart", {**settings, "aggregation.rule": rule})
                    run_id = local.server.run(rule, run_recipe(own, 5))
                    if local.wait(rule, run_id, 7200) != "completed":
                        raise SystemExit(local.server.log(rule))
                    clients_of = RunResult.read(local.server.runs / rule).clients
                    network = statistics.mean(one.accuracy for one in clients_of if one.client != LIAR)
                    found[rule] = {"network": network, "simulation": accuracy(rule, "flipped", seed, clients=5)}
                    print(f"{rule:18s} {found[rule]}", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--network", action="store_true", help="five clients on Flower, the first of the seeds")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    if arguments.network:
        torch.set_num_threads(1)  # as the agents have, so that all numbers are equal
        settings = {**SETTINGS, "clients": 5, "seed": seeds[0]}
        told = {"method": "fedmrl", "recipe": "quickstart", "settings": settings, "flipped": over_network(seeds[0])}
        arguments.out.write_text(json.dumps(told, indent=2) + "\n")
        return
    measured: dict[str, dict[str, list[float | None]]] = {}
    for rule in RULES:
        for attack in ("none", "flipped", "noise"):
            measured.setdefault(rule, {})[attack] = found = [accuracy(rule, attack, seed) for seed in seeds]
            print(f"{rule:18s} {attack:8s} {found}", file=sys.stderr)
            result = {"method": "fedmrl", "recipe": "quickstart", "settings": SETTINGS, "seeds": seeds, "accuracy": measured}
            arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

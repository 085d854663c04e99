"""What one lying client in ten does to FedMRL, by aggregation rule: accuracy of the honest clients.

    python benchmarks/poisoned.py --seeds 0,1,2 --out results/poisoned.json

Ten clients, all in every round, one of which is honest to itself but sends the server something else: its weights times -10
(`flipped`), or noise of their size (`noise`). Results are written as they come.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import fedmrl
from fedmrl.engines import Setting
from fedmrl.federation.clients import NoReply, Reply, Request
from fedmrl.federation.launch import pick_device
from fedmrl.federation.server import Federation
from fedmrl.federation.setup import prepare, schedule
from fedmrl.federation.simulated import SimulatedClients
from fedmrl.messages import Tensors
from fedmrl.methods import Round
from fedmrl.randomness import generator

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


def accuracy(rule: str, attack: str, seed: int) -> float | None:
    """Of the honest clients with the server's last small model, on average; None if training diverged."""
    recipe = fedmrl.load_recipe("quickstart", {**SETTINGS, "seed": seed, "aggregation.rule": rule})
    setting = prepare(recipe, pick_device("cpu"))
    clients = OneLies(setting, attack, seed)
    try:
        result = Federation(recipe, setting.terms, clients, schedule(recipe)).run()
    except fedmrl.DivergedError:
        return None
    finally:
        clients.close()
    return statistics.mean(own.accuracy for own in result.clients if own.client != LIAR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    measured: dict[str, dict[str, list[float | None]]] = {}
    for rule in RULES:
        for attack in ("none", "flipped", "noise"):
            measured.setdefault(rule, {})[attack] = found = [accuracy(rule, attack, seed) for seed in seeds]
            print(f"{rule:18s} {attack:8s} {found}", file=sys.stderr)
            result = {"method": "fedmrl", "recipe": "quickstart", "settings": SETTINGS, "seeds": seeds, "accuracy": measured}
            arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

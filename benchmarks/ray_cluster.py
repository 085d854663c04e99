"""Seconds a round and bytes moved: a Ray cluster made on this machine against the reference engine on the same cores.

    python benchmarks/ray_cluster.py [RECIPE] [--set KEY=VALUE] [--rounds 12] [--out results/ray.json]

Both train the same federation, in turns round by round, and must end with the same states. Seconds are the median round's in
which not all clients are evaluated; the first round, in which processes load what they need, does not count. Bytes are those of
tensors, a round on average.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path

import torch

import fedmrl
from fedmrl.cpu import cpu_name
from fedmrl.federation.cluster import ClusterClients
from fedmrl.federation.hosts import Hosts
from fedmrl.federation.server import Federation
from fedmrl.federation.setup import prepare, schedule
from fedmrl.federation.simulation import Simulation


def timed_round(run: Federation) -> float:
    begun = time.perf_counter()
    run.commit(run.next_round())
    return time.perf_counter() - begun


def measure(name: str, settings: list[str], rounds: int) -> dict[str, object]:
    recipe = fedmrl.load_recipe(name, [*settings, f"rounds={rounds}", f"evaluation.every={rounds + 1}"])
    setting = prepare(recipe, torch.device("cpu"))
    with closing(Hosts([setting], recipe.imports, "auto", print)) as hosts:
        print(*hosts.notices, sep="\n")
        hosts.hold([0])
        clients = ClusterClients([setting], hosts, [None])
        reference = Simulation(recipe, setting)
        cluster = Federation(recipe, setting.terms, clients, schedule(recipe))
        seconds: dict[str, list[float]] = {"reference": [], "ray": []}
        for number in range(rounds):
            seconds["reference"].append(timed_round(reference))
            seconds["ray"].append(timed_round(cluster))
            print(f"round {number + 1}: " + ", ".join(f"{engine} {of[-1]:.2f} s" for engine, of in seconds.items()), flush=True)
        moved = {what: clients.moved[what] / rounds for what in ("contents", "uploads", "states")}
        digests = [run.digest() for run in (reference, cluster)]
        usual = {engine: statistics.median(of[1:-1]) for engine, of in seconds.items()}
        return {
            "device": f"{cpu_name()}, {torch.get_num_threads()} threads",
            "on": hosts.device,
            "torch": torch.__version__,
            "clients_a_round": len(reference.who[0]),
            "seconds_a_round": usual,
            "ray_to_reference": usual["ray"] / usual["reference"],
            "all_seconds": seconds,
            "bytes_a_round": moved,
            "bytes_of_the_states_of_a_round": sum(
                tensor.numel() * tensor.element_size()
                for client in reference.who[-1]
                for tensor in setting.fresh_net(client).state_dict().values()
            ),
            "same_states": digests[0] == digests[1],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="quickstart")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    command = shlex.join(["python", "benchmarks/ray_cluster.py", *sys.argv[1:]])
    result = {"command": command, **measure(arguments.recipe, arguments.settings, arguments.rounds)}
    print(json.dumps({key: value for key, value in result.items() if key != "all_seconds"}, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

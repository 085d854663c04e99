"""FedAvg by fedmrl, by Apple's pfl and by Flower's simulation: the same CNN-5, clients, batches and rounds, on this machine.

    FEDMRL_DATA=... python benchmarks/peers/run.py [--envs .venv-peers] [--cycles 2] [--rounds 5] [--out results/peers.json]

CIFAR-10, 100 clients of 500 images (IID), 10 a round, batch 64, one epoch, SGD with rate 0.01, nothing evaluated in a round.
Each peer has a virtual environment of its own, made here with the same torch and numpy, and runs in the ways that could
suit it: pfl in one process with all threads and in a process for each core, Flower with one core and with all cores for a
client; its best is what counts. All take turns, cycle after cycle; a round's time is the median over all timed rounds.
Starting up (imports, data, Ray) is reported apart. All must end with fedmrl's weights up to rounding, or the run fails.
A client's first round costs fedmrl more than its later ones: it builds the net that the client will keep, while the peers'
clients keep nothing. With few rounds of warm-up most clients are new; --warm-up 20 shows what a long run is like.

This file needs Linux and the standard library only.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOLERANCE = 0.01
"""By how much a weight may differ from fedmrl's, as a share of how far training moved it at most."""


@dataclass(frozen=True)
class Variant:
    """One way to run a peer: a script in an environment."""

    peer: str
    way: str
    script: str
    options: list[str]
    launcher: list[str] = field(default_factory=list)

    def command(self, envs: Path, common: list[str]) -> list[str]:
        """What is run."""
        return [str(python_of(envs, self.peer)), *self.launcher, str(HERE / self.script), *common, *self.options]


def variants(cores: int, engine: str) -> list[Variant]:
    """All that take part; fedmrl first, since the others are compared with its weights."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cores}"]
    all_threads = [f"--threads={cores}"]
    flower = [f"--cores={cores}"]
    return [
        Variant("fedmrl", f"{engine} engine, {cores} threads", "ours.py", [f"--engine={engine}", *all_threads]),
        Variant("pfl", f"1 process, {cores} threads", "pfl_peer.py", all_threads),
        Variant("pfl", f"{cores} processes, 1 thread each", "pfl_peer.py", ["--threads=1"], torchrun),
        Variant("flower", "1 core a client", "flower_peer.py", [*flower, "--cpus-per-client=1"]),
        Variant("flower", f"{cores} cores a client", "flower_peer.py", [*flower, f"--cpus-per-client={cores}"]),
    ]


def requirements(peer: str) -> list[str]:
    """What pip installs; torch and numpy as this repository pins them."""
    pins = re.findall(r"^(?:torch|numpy)==.*$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    return {
        "fedmrl": ["--constraint", str(ROOT / "constraints.txt"), "--editable", str(ROOT)],
        "pfl": ["pfl[pytorch]==0.6.0", *pins],
        "flower": ["flwr[simulation]==1.41.0", *pins],
    }[peer]


def python_of(envs: Path, peer: str) -> Path:
    return envs / peer / "bin" / "python"


def make_environment(envs: Path, peer: str) -> None:
    """The peer's virtual environment, unless it is there already with just these requirements."""
    ready = envs / peer / "ready.txt"
    wanted = "\n".join([*requirements(peer), (ROOT / "constraints.txt").read_text()])
    if ready.is_file() and ready.read_text() == wanted:
        return
    say(f"installing {peer}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(envs / peer)], check=True)
    pip = [str(python_of(envs, peer)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *requirements(peer)], check=True, stdout=sys.stderr)
    ready.write_text(wanted)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(variant: Variant, envs: Path, common: list[str]) -> dict[str, Any]:
    """One run of a variant in a process of its own: the line of JSON that it prints."""
    command = [*variant.command(envs, common), f"--started={time.time()}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"start_up_seconds"')]
    if done.returncode != 0 or not lines:
        sys.exit(f"{variant.peer} ({variant.way}) failed with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    result: dict[str, Any] = json.loads(lines[-1])
    say(f"{variant.peer} ({variant.way}): {statistics.median(result['round_seconds']):.2f} s a round")
    return result


def summed_up(variant: Variant, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """A variant over all cycles."""
    last, seconds = runs[-1], [second for run in runs for second in run["round_seconds"]]
    samples = {count for run in runs for count in run["samples"]}
    median = statistics.median(seconds)
    return {
        "peer": variant.peer,
        "way": variant.way,
        "seconds_a_round": median,
        "fastest_round": min(seconds),
        "samples_a_round": sorted(samples),
        "samples_per_second": max(samples) / median,
        "start_up_seconds": statistics.median(run["start_up_seconds"] for run in runs),
        "processes": last["processes"],
        "threads_of_each": last["threads"],
        **{key: last[key] for key in ("test_loss", "test_accuracy", "largest_change")},
        "largest_difference_from_fedmrl": max(run["largest_difference"] for run in runs),
        **({"new_clients_of_each_round": last["new_clients"]} if "new_clients" in last else {}),
        "versions": last["versions"],
        "round_seconds_of_each_cycle": [run["round_seconds"] for run in runs],
    }


def check_same_work(rows: list[dict[str, Any]]) -> None:
    """All trained on as many samples, and came to the same weights."""
    for row in rows:
        if row["samples_a_round"] != rows[0]["samples_a_round"] or len(row["samples_a_round"]) != 1:
            sys.exit(f"{row['peer']} trained on {row['samples_a_round']} samples a round, not {rows[0]['samples_a_round']}")
        if row["largest_difference_from_fedmrl"] > TOLERANCE * row["largest_change"]:
            sys.exit(f"{row['peer']} ({row['way']}) ends with other weights: {row['largest_difference_from_fedmrl']:.2g} apart")


def device() -> str:
    """The machine in words."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), flags=re.MULTILINE) if info.is_file() else []
    return f"{platform.machine()} CPU{f' ({names[0].strip()})' if names else ''}, {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, default=ROOT / ".venv-peers", help="where the virtual environments are or will be")
    parser.add_argument("--cycles", type=int, default=2, help="how often all take a turn")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds at the start of each run that do not count")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each run that are timed")
    parser.add_argument("--cores", type=int, default=2, choices=(1, 2, 5, 10), help="cores to use; they divide 10 clients")
    parser.add_argument("--engine", default="reference", help="which of fedmrl's engines takes part")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    envs, chosen = arguments.envs.resolve(), variants(arguments.cores, arguments.engine)
    for peer in dict.fromkeys(variant.peer for variant in chosen):
        make_environment(envs, peer)
    runs: list[list[dict[str, Any]]] = [[] for _ in chosen]
    with tempfile.TemporaryDirectory() as folder:
        rounds = arguments.warm_up + arguments.rounds
        subprocess.run([str(python_of(envs, "fedmrl")), str(HERE / "common.py"), folder, str(rounds)], check=True)
        common = [f"--folder={folder}", f"--warm-up={arguments.warm_up}", f"--rounds={arguments.rounds}"]
        common += [f"--reference={Path(folder) / 'weights.npz'}"]
        for _ in range(arguments.cycles):
            for variant, results in zip(chosen, runs, strict=True):
                results.append(measure(variant, envs, common))
    rows = [summed_up(variant, results) for variant, results in zip(chosen, runs, strict=True)]
    check_same_work(rows)
    for row in rows:
        row["times_fedmrl"] = row["seconds_a_round"] / rows[0]["seconds_a_round"]
    ways = {peer: [row for row in rows if row["peer"] == peer] for peer in dict.fromkeys(row["peer"] for row in rows)}
    best = {peer: min(own, key=lambda row: row["seconds_a_round"]) for peer, own in ways.items()}
    result = {
        "command": f"python benchmarks/peers/run.py --cycles {arguments.cycles} --warm-up {arguments.warm_up} "
        f"--rounds {arguments.rounds} --cores {arguments.cores} --engine {arguments.engine}",
        "device": device(),
        "python": platform.python_version(),
        "best": {
            peer: {
                key: row[key] for key in ("way", "seconds_a_round", "samples_per_second", "times_fedmrl", "start_up_seconds")
            }
            for peer, row in best.items()
        },
        "all": rows,
    }
    print(json.dumps(result["best"], indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

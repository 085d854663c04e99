"""Memory and time of a round against the number of clients: FedMRL on small MLPs, 100 clients a round, states on disk.

    python benchmarks/many_clients.py [--out results/many-clients.json]

Each number of clients is measured in a process of its own, on the same synthetic samples (64 features, 10 classes). Memory is
the process's peak beyond what it held when the data was loaded; a round's time is the median of those in which not all
clients are evaluated.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS = (100, 1_000, 10_000)
SAMPLES, FEATURES, CLASSES, ROUNDS, COHORT = 200_000, 64, 10, 12, 100


def data_file(folder: Path) -> Path:
    """Samples around a centre for each class."""
    rng = np.random.default_rng(0)
    y = np.arange(SAMPLES) % CLASSES
    centres = rng.normal(size=(CLASSES, FEATURES))
    x = (centres[y] + 2 * rng.normal(size=(SAMPLES, FEATURES))).astype(np.float32)
    np.savez(folder / "samples.npz", x=x, y=y)
    return folder / "samples.npz"


def peak() -> int:
    """This process's highest memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def held() -> int:
    """What it holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(clients: int, file: Path) -> dict[str, Any]:
    """One number of clients, in this process. Every client has 20 samples, however many clients there are."""
    import fedmrl
    from fedmrl.data import sources

    recipe = fedmrl.load_recipe(
        "quickstart",
        {
            "data.name": "arrays",
            "data.file": str(file),
            "partition.kind": "iid",
            "clients": clients,
            "participation": COHORT / clients,
            "rounds": ROUNDS,
            "models.local": [{"hidden": [64, 32]}, {"hidden": [48, 32]}, {"hidden": [32, 32]}],
            "method.d1": 16,
            "training.epochs": 5,
            "evaluation.every": ROUNDS + 1,
        },
    )
    data = sources.load(recipe.data)
    cut = SAMPLES // max(CLIENTS) * clients
    data = replace(data, x=data.x[:cut], y=data.y[:cut], official_train=cut)
    before = held()
    with tempfile.TemporaryDirectory() as folder:
        run = fedmrl.run(recipe, data=data, store="disk", out=Path(folder) / "run")
    usual = [sum(record.seconds.values()) for record in run.records[2:-1]]
    return {
        "clients": clients,
        "seconds_a_round": statistics.median(usual),
        "bytes_beyond_data": peak() - before,
        "seconds": {what: statistics.median(r.seconds[what] for r in run.records[2:-1]) for what in run.records[0].seconds},
        "accuracy": run.headline(),
        "store": run.store,
    }


def figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Both against the number of clients."""
    from matplotlib.figure import Figure

    clients = [row["clients"] for row in rows]
    panels = {
        "seconds a round (100 clients trained)": [row["seconds_a_round"] for row in rows],
        "memory beyond the data (MiB)": [row["bytes_beyond_data"] / 1024**2 for row in rows],
    }
    drawing = Figure(figsize=(8, 3.4), layout="constrained")
    for axes, (title, values) in zip(drawing.subplots(1, 2), panels.items(), strict=True):
        axes.plot(clients, values, color="#0072B2", marker="o", linewidth=2)
        for x, y in zip(clients, values, strict=True):
            axes.annotate(f"{y:.2f}" if y < 10 else f"{y:.0f}", (x, y), xytext=(0, 7), textcoords="offset points", ha="center")
        axes.set(xscale="log", xlabel="clients in the federation", ylim=(0, 1.35 * max(values)))
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xticks(clients, [f"{n:,}" for n in clients])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    drawing.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.file)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = data_file(Path(folder))
        for clients in CLIENTS:
            command = [sys.executable, __file__, "--one", str(clients), "--file", str(file)]
            rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
    import torch

    device = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    result = {"command": "python benchmarks/many_clients.py", "device": device, "torch": torch.__version__, "rows": rows}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
        figure(rows, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()

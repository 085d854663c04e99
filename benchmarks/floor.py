"""How fast a training step could be at best on this device: what it must compute and move, at rates measured here and now.

    python benchmarks/floor.py [RECIPE] [--set key=value ...] [--bench results/h200/bench-b64.json] [--out floor.json]

Counted without padding. Operations are those of torch's own counter, over the rate of a large matrix product in the recipe's
precision. Bytes are those that no order of work can save, over the speed of a large copy: weights are read for the forward
pass; read again for the backward pass, where gradients are used up as they arise; weights and momentum are then written,
and momentum read; what each layer puts out, after its ReLU and pooling, is written once and read once. With `--bench`, the
fastest row of that file is set against it.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedmrl.bench import noise
from fedmrl.config import load_named
from fedmrl.engines import Setting
from fedmrl.engines.base import numerics
from fedmrl.federation.launch import pick_device
from fedmrl.federation.setup import prepare, schedule
from fedmrl.methods import Batch
from fedmrl.metrics.flops import FlopCounter

WIDTH = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2}  # bytes of what a layer puts out


def main() -> None:
    arguments = _arguments()
    recipe = load_named(arguments.recipe, arguments.set).recipe
    place = pick_device("auto")
    setting = prepare(recipe, place, data=noise(recipe))
    clients, batch = schedule(recipe)[0], recipe.training.batch_size
    precision = recipe.training.precision
    operations = sum(flops_of_sample(setting, client) for client in clients) * batch
    moved = sum(bytes_of_weights(setting, client) + batch * bytes_of_sample(setting, client) for client in clients)
    rate, bandwidth = matmul_rate(place, precision, setting.dtype), copy_rate(place)
    floor = max(operations / rate, moved / bandwidth)
    found: dict[str, Any] = {
        "command": "python benchmarks/floor.py " + " ".join([arguments.recipe, *(f"--set {s}" for s in arguments.set)]),
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else f"{platform.machine()} CPU",
        "torch": torch.__version__,
        "precision": precision,
        "clients": len(clients),
        "batch_size": batch,
        "operations_of_step": operations,
        "bytes_of_step": moved,
        "operations_per_second": rate,
        "bytes_per_second": bandwidth,
        "floor_seconds": {"compute": operations / rate, "memory": moved / bandwidth},
        "floor_samples_per_second": len(clients) * batch / floor,
    }
    if arguments.bench:
        rows = json.loads(arguments.bench.read_text())["rows"]
        same = [row for row in rows if row["seeds"] == 1 and row["precision"] == setting.training.precision]
        best = max(row.get("step_samples_per_second", row["samples_per_second"]) for row in same)
        found |= {"measured_samples_per_second": best, "times_as_slow": found["floor_samples_per_second"] / best}
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


def flops_of_sample(setting: Setting, client: int) -> float:
    """Of one sample in one step, forward and backward, in the phase that comes last."""
    return FlopCounter(setting).of_sample(client, earlier=1)[-1]


def bytes_of_weights(setting: Setting, client: int) -> int:
    """Read, read again, written; momentum read and written."""
    numbers = sum(p.numel() for p in setting.fresh_net(client).parameters())
    return numbers * (5 if setting.training.momentum else 3) * setting.dtype.itemsize


def bytes_of_sample(setting: Setting, client: int) -> int:
    """What linear and pooling layers put out for one sample, written and read, and the sample itself: the rest can be fused."""
    net, put_out = setting.fresh_net(client), 0

    def count(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal put_out
        put_out += output[0].numel()

    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.MaxPool2d):
            layer.register_forward_hook(count)
    phase = setting.method.phases(setting.training, earlier=1)[-1]
    x = torch.zeros(2, *setting.data.shape, device=setting.device, dtype=setting.dtype)
    phase.loss(net, Batch(x, torch.zeros(2, dtype=torch.long, device=setting.device)))
    return put_out * 2 * WIDTH[setting.training.precision] + x[0].numel()


def matmul_rate(place: torch.device, precision: str, dtype: torch.dtype) -> float:
    """Operations a second of a large product."""
    size = 8192 if place.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=place, dtype=dtype) for _ in range(2))
    if precision == "bf16":
        a, b = a.bfloat16(), b.bfloat16()
    with numerics(precision, place):
        return 2 * size**3 / best_of(lambda: a @ b, place)


def copy_rate(place: torch.device) -> float:
    """Bytes a second, read and written."""
    source = torch.zeros(2**29 if place.type == "cuda" else 2**26, device=place, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * source.numel() / best_of(lambda: target.copy_(source), place)


def best_of(work: Callable[[], object], place: torch.device, repeats: int = 10) -> float:
    found = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        found.append(time.perf_counter() - started)
    return min(found[1:])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="paper/cifar10-n10")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--bench", type=Path)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

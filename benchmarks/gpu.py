"""All that docs/performance.md says of a GPU, measured by one command that can be stopped and called again.

    python benchmarks/gpu.py gpu --minutes 9

What has its file in the folder is not measured again; what would not be done within the minutes is not begun. Compiled
programs are kept in `--cache`. CIFAR-10 must be there (`fedmrl data cifar10`).
"""

import argparse
import fnmatch
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedmrl.methods import METHODS
from fedmrl.reproduce.experiments import tuned_settings

BESIDE = Path(__file__).parent
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
STEPS_ALONE = ("partition.kind=iid", "training.epochs=1", "training.momentum=0.9")


@dataclass(frozen=True)
class Measurement:
    """A command of Python's that writes one file, and how many seconds to allow for it."""

    file: str
    seconds: int
    words: tuple[str, ...]

    def make(self, out: Path, cache: Path, more: list[str]) -> bool:
        """Run it; whether it came to its file. A file is there only if it is whole."""
        part = out / f"{self.file}.part"
        words = [sys.executable, *self.words, *_set(*more), "--out", str(part)]
        print(f"{self.file}: {shlex.join(words[1:])}", flush=True)
        environment = {**os.environ, **{name: str(cache / name) for name in CACHES}}
        begun = time.monotonic()
        ended = subprocess.run(words, env=environment, check=False).returncode
        if ended == 0 and part.is_file():
            part.rename(out / self.file)
        print(f"{self.file}: {time.monotonic() - begun:.0f} s, ended with {ended}", flush=True)
        return (out / self.file).is_file()


def measurements(cache: Path) -> Iterator[Measurement]:
    """In the order of their weight: what is cut off by the time is what matters least."""
    steps, optimiser = (
        _set(*STEPS_ALONE),
        _set(*(f"{key}={json.dumps(value)}" for key, value in tuned_settings()["cifar10"]["all"].items())),
    )
    bf16 = _set("training.precision=bf16")
    bench = ("-m", "fedmrl", "bench", "paper/cifar10-n10", "--noise", *steps)
    fastest = ("--ways", "reference,compiled", "--precisions", "bf16", "--fused", "1")

    def whole(*more: str) -> tuple[str, ...]:
        return (str(BESIDE / "whole_runs.py"), "paper/cifar10-n100", *optimiser, "--cache", str(cache), *more)

    yield Measurement("whole-fedmrl.json", 220, whole("--cold", "fedmrl", "--run", "fedmrl"))
    yield Measurement("whole-standalone.json", 120, whole("--run", "standalone"))
    yield Measurement("whole-fedmrl-seeds.json", 240, whole("--run", "fedmrl --seeds 0,1,2"))
    yield Measurement("bench-b512.json", 120, (*bench, *fastest, *_set("training.batch_size=512")))
    yield Measurement("bench-k100.json", 120, (*bench, *fastest, *_set("clients=100")))
    yield Measurement("bench-b64.json", 300, bench)
    for method in METHODS:
        if method not in ("fedmrl", "standalone"):
            yield Measurement(f"whole-{method}.json", 180, whole("--run", method))
    recipe = ("paper/cifar10-n10", *steps, *bf16)
    yield Measurement("floor.json", 60, (str(BESIDE / "floor.py"), *recipe))
    yield Measurement("profile.json", 90, (str(BESIDE / "step_profile.py"), *recipe))
    short = _set("rounds=200")
    yield Measurement("precision.json", 480, (str(BESIDE / "precision.py"), "paper/cifar10-n100", *optimiser, *short))


def _set(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder with a file for each measurement")
    parser.add_argument("--minutes", type=float, default=60, help="nothing is begun that would take longer than these")
    parser.add_argument("--only", default="*", help="the files to make, as a pattern: 'whole-*'")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "fedmrl" / "compiled")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="in all of them, to try it in small")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * arguments.minutes
    left = []
    for one in measurements(arguments.cache):
        if not fnmatch.fnmatch(one.file, arguments.only) or (arguments.out / one.file).is_file():
            continue
        in_time = time.monotonic() + one.seconds < until
        if not in_time or not one.make(arguments.out, arguments.cache, arguments.set):
            left.append(one.file)
    print(f"left: {', '.join(left)}" if left else "all is measured")


if __name__ == "__main__":
    main()

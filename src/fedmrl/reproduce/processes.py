"""Commands side by side, each a process of its own: while one starts, another keeps the device busy."""

import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

_PROGRAM = (sys.executable, "-m", "fedmrl")
_LOOK = 0.05  # seconds between two looks at what is running


@dataclass(frozen=True)
class Ended:
    """A command that came to its end: its name, its exit code, and the last line that it said of itself."""

    name: str
    code: int
    said: str


@dataclass(frozen=True)
class _Running:
    name: str
    process: "subprocess.Popen[bytes]"
    said: IO[bytes]

    @classmethod
    def start(cls, name: str, words: Sequence[str]) -> "_Running":
        said = tempfile.TemporaryFile()  # noqa: SIM115, closed by `ended`
        # In a session of its own, so that a Ctrl-C is heard once, here, and passed on.
        asked = [*_PROGRAM, *words]
        return cls(name, subprocess.Popen(asked, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True), said)

    def ended(self) -> Ended:
        """What came of it; waits for it."""
        code = self.process.wait()
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        self.said.close()
        if code < 0:
            return Ended(self.name, code, f"ended by {signal.Signals(-code).name}")
        return Ended(self.name, code, lines[-1].removeprefix("fedmrl: ") if lines else "it ended without a word")


def side_by_side(commands: Mapping[str, Sequence[str]], jobs: int, until: float = math.inf) -> Generator[Ended, None, None]:
    """Run commands of fedmrl, so many at once, and tell of each as it ends. At `until`, by the monotonic clock, or when nobody
    listens any more, those that run are asked to stop, and no other is started.
    """
    waiting, running = list(commands.items()), list[_Running]()
    try:
        while (waiting or running) and time.monotonic() < until:
            while waiting and len(running) < jobs:
                running.append(_Running.start(*waiting.pop(0)))
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                yield one.ended()
            time.sleep(_LOOK)
    finally:
        for one in running:
            one.process.terminate()  # and not by SIGINT, which what is started in the background of a shell never hears
        for one in running:
            one.ended()

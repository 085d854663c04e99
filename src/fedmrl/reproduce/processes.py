"""Parallel fedmrl commands, each in its own process, which keeps the device busy while another one starts."""

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
_POLL_SECONDS = 0.05  # seconds between two checks of running processes


@dataclass(frozen=True)
class ExitedProcess:
    """A command that ended: its name, exit code, and last line of output."""

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
        # In its own session, so that Ctrl-C reaches only this process, which stops the others.
        asked = [*_PROGRAM, *words]
        return cls(name, subprocess.Popen(asked, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True), said)

    def ended(self) -> ExitedProcess:
        """Waits for the process and returns its result."""
        code = self.process.wait()
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        self.said.close()
        if code < 0:
            return ExitedProcess(self.name, code, f"ended by {signal.Signals(-code).name}")
        return ExitedProcess(self.name, code, lines[-1].removeprefix("fedmrl: ") if lines else "it ended without a message")


def run_parallel(
    commands: Mapping[str, Sequence[str]], jobs: int, until: float = math.inf
) -> Generator[ExitedProcess, None, None]:
    """Runs fedmrl commands, up to `jobs` in parallel, and yields each one's result when it ends.

    At `until` (monotonic clock), or when the generator is closed, running commands are told to stop and no others start.
    """
    waiting, running = list(commands.items()), list[_Running]()
    try:
        while (waiting or running) and time.monotonic() < until:
            while waiting and len(running) < jobs:
                running.append(_Running.start(*waiting.pop(0)))
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                yield one.ended()
            time.sleep(_POLL_SECONDS)
    finally:
        for one in running:
            one.process.terminate()  # not SIGINT, which background processes of a shell ignore
        for one in running:
            one.ended()

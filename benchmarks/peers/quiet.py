"""Whether a machine that is shared was left alone while something was measured. Needs Linux and the standard library only.

Two threads of one program wait for each other at every step, so that another program on one of two cores can make them ten
times slower. Runs are therefore chosen by what others used meanwhile, which says nothing about how the run came out.
"""

import os
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

PROC = Path("/proc")
IDLE = slice(3, 5)  # idle, and waiting for a disk


def wait(share: float, patience: float) -> None:
    """Wait until no more than this share of the machine is in use, or until patience ends."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        busy, total = _machine()
        time.sleep(3)
        busy_now, total_now = _machine()
        if busy_now - busy <= share * (total_now - total):
            return


def run(command: list[str]) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command to its end; also the share of the machine's time that others used meanwhile, the hypervisor included."""
    # A process is the command's own if it inherited this variable, whatever parent or session a daemon gave itself.
    mark = f"PEERS_RUN={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    own: dict[int, int] = {}
    known: dict[int, bool] = {}
    busy, total = _machine()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, text=True, env=os.environ | {name: value})
        while process.poll() is None:
            own |= _used_by(mark.encode(), known)
            time.sleep(0.25)
        busy_now, total_now = _machine()
        for stream in (out, err):
            stream.seek(0)
        done = subprocess.CompletedProcess(command, process.returncode, out.read(), err.read())
    return done, max(0, busy_now - busy - sum(own.values())) / max(1, total_now - total)


def _machine() -> tuple[int, int]:
    """Ticks that all cores were in use, and all ticks, since the machine started."""
    ticks = [int(number) for number in (PROC / "stat").read_text().partition("\n")[0].split()[1:9]]
    return sum(ticks) - sum(ticks[IDLE]), sum(ticks)


def _used_by(mark: bytes, known: dict[int, bool]) -> dict[int, int]:
    """Ticks used so far by each process that has the mark among its variables. `known` remembers which have."""
    used = {}
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        pid = int(folder.name)
        try:
            # A program that is just being loaded shows no variables yet: it is looked at again.
            if pid not in known and (variables := (folder / "environ").read_bytes()):
                known[pid] = mark in variables.split(b"\0")
            if known.get(pid):
                user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
                used[pid] = int(user) + int(system)
        except OSError:  # it has ended, or is someone else's
            continue
    return used

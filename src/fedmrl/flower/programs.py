"""Flower's programs: their command lines, and the environment in which they run."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedmrl.errors import UserError
from fedmrl.files import write_whole

CONNECTION = "fedmrl"
"""The name of the server in Flower's own configuration."""
# Not in `preexec_fn`, which is unsafe in a process with threads. The first argument of prctl is PR_SET_PDEATHSIG.
_END_WITH_PARENT = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); os.execvp(sys.argv[1], sys.argv[1:])"
)


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's programs, which keep their files in `home` and call no service on the internet."""
    programs = str(Path(sys.executable).parent)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("FLWR_")},
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; each message waits for it
    }


def superlink(certificates: Path, database: Path, host: str, port: int) -> list[str]:
    """The command that starts Flower's server, with TLS and node authentication on."""
    return [
        _program("flower-superlink"),
        *("--ssl-ca-certfile", str(certificates / "ca.crt")),
        *("--ssl-certfile", str(certificates / "server.pem")),
        *("--ssl-keyfile", str(certificates / "server.key")),
        "--enable-supernode-auth",
        *("--host", host, "--port", str(port)),
        *("--database", str(database)),
    ]


def supernode(address: str, authority: Path, key: Path, socket: Path, port: int) -> list[str]:
    """The command that starts a client's connection to the server; `port` is one of its own, on this machine only."""
    return [
        _program("flower-supernode"),
        *("--root-certificates", str(authority)),
        *("--superlink", address),
        *("--auth-supernode-private-key", str(key)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", f"socket={json.dumps(str(socket))}"),
    ]


def connect(home: Path, address: str, authority: Path) -> None:
    """Writes Flower's own configuration, so that `flwr` finds this server."""
    home.mkdir(parents=True, exist_ok=True)
    connection = {"address": address, "root-certificates": str(authority.resolve())}
    write_whole(home / "config.toml", tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}}))


def flwr(home: Path, *words: str, timeout: float = 60) -> dict[str, Any]:
    """Runs a `flwr` command with JSON output and returns it; raises `UserError` with Flower's own words if it fails."""
    done = _done(home, [*words, "--format", "json"], timeout)
    said = _json_in(done.stdout)
    if done.returncode or said is None or said.get("success") is False:
        problem = (said or {}).get("error-message") or done.stderr or done.stdout
        raise UserError(f"'flwr {words[0]}' failed: {' '.join(str(problem).split())}")
    return said


def output(home: Path, *words: str, timeout: float = 60) -> str:
    """Runs a `flwr` command and returns what it prints."""
    done = _done(home, words, timeout)
    if done.returncode:
        raise UserError(f"'flwr {words[0]}' failed: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout


def _done(home: Path, words: Sequence[str], timeout: float) -> "subprocess.CompletedProcess[str]":
    command = [_program("flwr"), *words]
    try:
        return subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"the server did not answer 'flwr {words[0]}' within {timeout:.0f} seconds; is it running?") from error


def _json_in(text: str) -> dict[str, Any] | None:
    """The JSON object in a program's output, which may have lines before it."""
    start = text.find("{")
    try:
        found = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _program(name: str) -> str:
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise UserError(f"{name} is not installed beside this Python; install it by: pip install 'fedmrl[flower]'")
    return str(path)


def check_port(host: str, port: int, advice: str) -> None:
    """Raises `UserError` if a program cannot listen there; `advice` says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UserError(f"cannot listen at port {port} of {host} ({reason}); {advice}") from error


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """The command, such that the kernel ends the program when the process that starts it has ended, even by force."""
    return [sys.executable, "-c", _END_WITH_PARENT, *command]


def stop(processes: Sequence["subprocess.Popen[bytes]"], patience: float = 10) -> None:
    """Ends processes, by force after some seconds."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

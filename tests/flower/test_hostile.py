"""A program that the server's operator sends through Flower: what it reads of a client, with users of its own and without."""

import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pytest
import tomli_w
from tiny import tiny_recipe

import fedmrl
from fedmrl.flower.client_folder import ClientFolder
from fedmrl.flower.deal import deal
from fedmrl.flower.local import LocalFederation
from fedmrl.flower.server_folder import run_recipe
from fedmrl.results import RunResult

AGENT, NODE = "fedmrl-test-a", "fedmrl-test-n"
PATIENCE = 600

pytestmark = [
    pytest.mark.federation,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make users"),
    pytest.mark.skipif(shutil.which("useradd") is None, reason="useradd is not installed"),
]

PROJECT = """\
[project]
name = "hostile"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "operator"
[tool.flwr.app.components]
serverapp = "hostile:server"
clientapp = "hostile:client"
[tool.flwr.app.config]
folder = ""
agent = 0
out = ""
"""

CODE = """\
import json, os, socket
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

def tries(function):
    try:
        return bool(function())
    except OSError:
        return False

def read(path):
    return path.read_bytes()[:1]

def connect(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        return True

def state(folder):
    return any(file.suffix == ".safetensors" and read(file) for file in Path(folder, "state", "runs").rglob("*"))

@client.query()
def spy(message, context):
    folder, agent = Path(context.run_config["folder"]), context.run_config["agent"]
    found = {name: tries(lambda name=name: read(folder / name)) for name in ("model.py", "data.npz", "client.toml", "node/key")}
    found["state"] = tries(lambda: state(folder))
    found["audit"] = tries(lambda: read(folder / "state" / "audit.jsonl"))
    found["list"] = tries(lambda: os.listdir(folder))
    found["environment"] = tries(lambda: read(Path(f"/proc/{agent}/environ")))
    found["memory"] = tries(lambda: open(f"/proc/{agent}/mem", "rb"))
    found["kill"] = tries(lambda: os.kill(agent, 0) is None)
    found["socket"] = tries(lambda: connect(context.node_config["socket"]))
    return Message(RecordDict({"found": ConfigRecord({"json": json.dumps(found)})}), reply_to=message)

@server.main()
def main(grid, context):
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=node, message_type="query")], timeout=300)
    text = reply.error.reason if reply.has_error() else reply.content["found"]["json"]
    part = Path(context.run_config["out"]).with_suffix(".part")
    part.write_text(text)
    part.rename(context.run_config["out"])
"""

MODEL = """\
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 6), nn.ReLU(), nn.Linear(6, 4))
"""

SEPARATE = """\
import sys
from pathlib import Path
from fedmrl.flower import separation
from fedmrl.flower.client_folder import ClientFolder
folder, units, separation.AGENT_USER, separation.NODE_USER = sys.argv[1:]
separation.separate(ClientFolder.opened(Path(folder)), Path(units))
"""


@pytest.fixture(scope="module")
def place():
    """A folder that all users can enter."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def python(place):
    """A Python that all users can start, with the packages of this one and a copy of fedmrl."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for base in (Path(sys.base_prefix, "bin", f"python{version}"), Path(f"/usr/bin/python{version}")):
        if base.exists() and all(folder.stat().st_mode & 0o001 for folder in base.resolve().parents):
            break
    else:
        pytest.skip(f"there is no Python {version} that other users can start")
    subprocess.run([base, "-m", "venv", "--without-pip", place / "env"], check=True)
    packages = place / "env" / "lib" / f"python{version}" / "site-packages"
    shutil.copytree(Path(fedmrl.__file__).parent, packages / "fedmrl", ignore=shutil.ignore_patterns("__pycache__"))
    others = [Path(path).resolve() for path in sys.path if Path(path).name == "site-packages"]
    if not all(folder.stat().st_mode & 0o001 for path in others for folder in path.parents):
        pytest.skip("the installed packages are in a folder that other users cannot enter")
    (packages / "others.pth").write_text("\n".join(map(str, others)))
    made = place / "env" / "bin" / "python"
    for script in Path(sys.executable).parent.glob("fl*w*r*"):
        target = made.with_name(script.name)
        target.write_text(f"#!{made}\n{script.read_text().partition(chr(10))[2]}")
        target.chmod(0o755)
    return made


@pytest.fixture
def users():
    before = {user.pw_name for user in pwd.getpwall()}
    yield
    for user in {AGENT, NODE} - before:
        if user in {found.pw_name for found in pwd.getpwall()}:
            subprocess.run(["userdel", user], check=True, capture_output=True)


def as_unit(unit, local, log):
    """Runs a unit's ExecStart line as its user and group and with its environment, as systemd does."""
    lines = dict(re.findall(r"^(User|Group|UMask|ExecStart|Environment)=(.*)$", unit.read_text(), re.MULTILINE))
    env = dict(word.split("=", 1) for word in shlex.split(lines.get("Environment", "")))
    with log.open("ab") as out:
        process = subprocess.Popen(
            shlex.split(lines["ExecStart"]), user=lines["User"], group=lines["Group"], extra_groups=[],
            umask=int(lines["UMask"], 8), cwd="/", env={"PATH": "/usr/bin:/bin", "FEDMRL_LOCAL": local._token, **env},
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    local._started.append(process)
    return process


def until(ready, what, log):
    end = time.monotonic() + PATIENCE
    while not (found := ready()):
        assert time.monotonic() < end, f"{what} took too long: {log.read_text()}"
        time.sleep(0.2)
    return found


@pytest.mark.parametrize("two_users", [True, False], ids=["two users", "one user"])
def test_a_program_sent_through_flower_reads_nothing_of_a_client_with_two_users(two_users, place, python, users, tmp_path):
    folder = Path(tempfile.mkdtemp(dir=place))
    folder.chmod(0o755)
    recipe = tiny_recipe(clients=2, participation=1.0, rounds=1)
    path = deal(recipe, folder / "clients")[0]
    (path / "model.py").write_text(MODEL)
    toml = path / "client.toml"
    toml.write_text(tomli_w.dumps({**tomllib.loads(toml.read_text()), "model": "model.py:make"}))
    hostile, out = tmp_path / "hostile", tmp_path / "found.json"
    hostile.mkdir()
    (hostile / "pyproject.toml").write_text(PROJECT)
    (hostile / "hostile.py").write_text(CODE)
    settings = {"min_clients": 1, "round_seconds": 300.0, "wait_seconds": 300.0, "pause_seconds": 1.0}
    with LocalFederation(tmp_path / "federation", [path], settings) as local:
        local.start_server()
        local.register(0)
        units, names = tmp_path / "units", (AGENT, NODE if two_users else AGENT)
        done = subprocess.run(
            [python, "-c", SEPARATE, path, units, *names],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stderr
        client = ClientFolder.opened(path)
        log = {name: local.folder / f"{name}.log" for name in ("agent", "node")}
        agent = as_unit(units / "fedmrl-agent.service", local, log["agent"])
        until(lambda: Path(client.config().socket).is_socket() or agent.poll(), "the agent", log["agent"])
        as_unit(units / "fedmrl-node.service", local, log["node"])
        run_id = local.server.run("honest", run_recipe(recipe, 1))
        assert local.wait("honest", run_id, PATIENCE) == "completed", local.server.log("honest")
        assert RunResult.read(local.server.runs / "honest").records[0].participants == [0]
        config = f'folder="{path}" agent={agent.pid} out="{out}"'
        local.server._flwr("run", str(hostile), "--run-config", config)
        until(out.exists, "the hostile program", log["node"])
        found = json.loads(out.read_text())
        assert Path(f"/proc/{agent.pid}").owner() == AGENT
    open_to_all = {"node/key": True, "socket": True}
    private = ("model.py", "data.npz", "client.toml", "state", "audit", "list", "environment", "memory", "kill")
    assert found == {**open_to_all, **dict.fromkeys(private, not two_users)}

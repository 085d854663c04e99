"""Users and systemd units that keep what arrives through Flower from a client's model, data and state."""

import grp
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import tomli_w

from fedmrl.errors import UserError
from fedmrl.files import write_whole
from fedmrl.flower.client_folder import ClientFolder

AGENT_USER, NODE_USER = "fedmrl-agent", "fedmrl-node"
UNITS = Path("/etc/systemd/system")

UNPROTECTED = (
    "Not protected: agent and SuperNode run as one user, so a program that the server's operator sends through Flower can read "
    "this client's model, data, state and key. As root, 'fedmrl client init --system' gives each a user of its own."
)

_AGENT_UNIT = """\
[Unit]
Description=fedmrl agent of {name}

[Service]
User={agent}
Group={node}
UMask=0077
ExecStart={python} -m fedmrl client start {folder} --agent-only
Restart=on-failure
PrivateNetwork=yes
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={state} {socket_folder}
PrivateTmp=yes
ProtectProc=invisible

[Install]
WantedBy=multi-user.target
"""

_NODE_UNIT = """\
[Unit]
Description=Flower SuperNode of {name}
After=network-online.target fedmrl-agent.service
Wants=network-online.target

[Service]
User={node}
Group={node}
UMask=0077
Environment={environment}
ExecStart={command}
Restart=always
RestartSec=15
KillMode=control-group
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectProc=invisible
ReadWritePaths={flower}
InaccessiblePaths={state}
MemoryMax=2G
TasksMax=64

[Install]
WantedBy=multi-user.target
"""


def separate(client: ClientFolder, units: Path = UNITS) -> list[str]:
    """Makes the users, gives each what it may read, and writes the units; returns what to do next. Only root can."""
    if os.geteuid() != 0:
        raise UserError("--system makes users and systemd units, which only root can; leave it out, or run this as root")
    useradd = shutil.which("useradd")
    if useradd is None:
        raise UserError("--system needs the program useradd, which is not here; make the users by hand, as docs/deploy.md says")
    if client.path.is_relative_to("/home") or client.path.is_relative_to("/root"):
        raise UserError(
            f"{client.path} is in somebody's home, which the new users cannot enter; choose one as /srv/fedmrl-client"
        )
    for user in (AGENT_USER, NODE_USER):
        if not _exists(user):
            subprocess.run(
                [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", user], check=True
            )
    socket = Path(client.path, "socket", "agent.sock")
    socket.parent.mkdir(exist_ok=True)
    state = client.path / "state"
    state.mkdir(exist_ok=True)
    _set_keys(client.config_file, {"socket": str(socket), "socket_group": NODE_USER, "uids": [pwd.getpwnam(NODE_USER).pw_uid]})
    agent, node = pwd.getpwnam(AGENT_USER), grp.getgrnam(NODE_USER).gr_gid
    _give(client.path, agent.pw_uid, agent.pw_gid)
    client.path.chmod(0o711)  # the SuperNode passes through and lists nothing
    state.chmod(0o700)
    os.chown(socket.parent, agent.pw_uid, node)
    socket.parent.chmod(0o750)
    flower = client.node / "flower"
    flower.mkdir(exist_ok=True)
    _give(client.node, pwd.getpwnam(NODE_USER).pw_uid, node)
    command, env = client.supernode(socket)
    shown = {key: value for key, value in env.items() if key.startswith("FLWR_") or key == "PATH"}
    names = {
        "name": client.path.name,
        "agent": AGENT_USER,
        "node": NODE_USER,
        "python": sys.executable,
        "folder": client.path,
        "state": state,
        "socket_folder": socket.parent,
        "flower": flower,
        "command": shlex.join(command),
        "environment": " ".join(shlex.quote(f"{key}={value}") for key, value in shown.items()),
    }
    units.mkdir(parents=True, exist_ok=True)
    write_whole(units / "fedmrl-agent.service", _AGENT_UNIT.format(**names))
    write_whole(units / "fedmrl-node.service", _NODE_UNIT.format(**names))
    return [
        f"There are now the users {AGENT_USER} and {NODE_USER}, and the units fedmrl-agent and fedmrl-node. What comes through "
        f"Flower runs as {NODE_USER}: it reaches the agent's socket, not model, data and state.",
        "Not protected: that user reads the client's key, so such a program can pass as this client until the key is changed. "
        "It can also open connections, which a firewall rule for that user can prevent.",
        f"Files that you add to {client.path} have to be readable by {AGENT_USER} alone.",
        "Start both by: systemctl enable --now fedmrl-agent fedmrl-node",
    ]


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _give(folder: Path, uid: int, gid: int) -> None:
    """Makes all files in a folder this user's alone."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, gid)
        path.chmod(0o700 if path.is_dir() else 0o600)


def _set_keys(path: Path, keys: dict[str, object]) -> None:
    """Sets keys of a TOML file's first table; its comments stay."""
    head, table, rest = path.read_text(encoding="utf-8").partition("\n[")
    lines = [line for line in head.splitlines() if line.partition("=")[0].strip().removeprefix("# ") not in keys]
    write_whole(path, "\n".join([*lines, *tomli_w.dumps(keys).splitlines(), ""]) + table + rest)

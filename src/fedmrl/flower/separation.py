"""Users and systemd units that keep what arrives through Flower from a client's model, data and state."""

import grp
import json
import os
import pwd
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import fedmrl
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
    _check_installed(sys.executable, fedmrl.__file__)
    for user in (AGENT_USER, NODE_USER):
        if not _exists(user):
            subprocess.run(
                [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", user], check=True
            )
    client.claim_node()
    socket = Path(client.path, "socket", "agent.sock")
    socket.parent.mkdir(exist_ok=True)
    state = Path(client.config().state).resolve()
    state.mkdir(parents=True, exist_ok=True)
    _set_keys(client.config_file, {"socket": str(socket), "socket_group": NODE_USER, "uids": [pwd.getpwnam(NODE_USER).pw_uid]})
    agent, node = pwd.getpwnam(AGENT_USER), grp.getgrnam(NODE_USER).gr_gid
    _give(client.path, agent.pw_uid, agent.pw_gid, leave_out=client.node.name)
    if not state.is_relative_to(client.path):
        _give(state, agent.pw_uid, agent.pw_gid)
    client.path.chmod(0o711)  # the SuperNode passes through and lists nothing
    os.chown(socket.parent, agent.pw_uid, node, follow_symlinks=False)
    socket.parent.chmod(0o750)
    flower = _give_node(client, pwd.getpwnam(NODE_USER).pw_uid, node)
    command, env = client.supernode(socket)
    # Threads count as tasks, of which the unit has few, and NumPy would start one for each core in every process.
    shown = {key: value for key, value in env.items() if key.startswith("FLWR_")} | {"OPENBLAS_NUM_THREADS": "1"}
    shown["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
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


def _check_installed(*paths: str) -> None:
    """Raises `UserError` if other users cannot start these programs or read these modules, as in somebody's home."""
    for path in {*map(Path, paths), *(Path(path).resolve() for path in paths)}:
        closed = [folder for folder in path.parents if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH]
        homes = [Path(home) for home in ("/home", "/root") if path.is_relative_to(home)]
        if found := [*closed[-1:], *homes]:
            raise UserError(
                f"{path} is in {found[0]}, which the new users cannot enter; install Python and fedmrl where all users can "
                "read them, as in /opt/fedmrl, and run this from there"
            )


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _give(folder: Path, uid: int, gid: int, leave_out: str | None = None) -> None:
    """Makes all files in a folder this user's alone, but those in the subfolder `leave_out`. Links are not followed."""
    for place, folders, names, descriptor in os.fwalk(folder):
        if Path(place) == folder and leave_out in folders:
            folders.remove(leave_out)
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, 0o700)
        for name in names:
            if not stat.S_ISREG(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
                continue
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
            try:
                os.fchown(file, uid, gid)
                os.fchmod(file, 0o600)
            finally:
                os.close(file)


def _give_node(client: ClientFolder, uid: int, gid: int) -> Path:
    """Lets the SuperNode's user read its key and certificate, and gives it a folder for Flower's files; returns that.

    All else in `node/` stays root's, who writes there again: that user runs programs of others, which could plant links.
    """
    flower = client.node / "flower"
    if flower.exists() and flower.lstat().st_uid != uid:  # holds only what Flower makes again
        shutil.rmtree(flower)
    flower.mkdir(exist_ok=True, mode=0o700)
    os.chown(flower, uid, gid, follow_symlinks=False)
    for path in client.node.iterdir():
        if path.is_file():
            os.chown(path, 0, gid, follow_symlinks=False)
            path.chmod(0o640)
    os.chown(client.node, 0, gid, follow_symlinks=False)
    client.node.chmod(0o750)
    return flower


def _set_keys(path: Path, keys: dict[str, object]) -> None:
    """Sets keys of a TOML file's first table; its comments stay."""
    head, table, rest = path.read_text(encoding="utf-8").partition("\n[")
    lines: list[str] = []
    within = False  # a list of several lines that is replaced
    for line in head.splitlines():
        name, _, value = line.partition("=")
        if within:
            within = not line.rstrip().endswith("]")
        elif name.strip().removeprefix("# ") in keys:
            within = value.strip() == "["
        else:
            lines.append(line)
    lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]  # such JSON is TOML
    write_whole(path, "\n".join([*lines, ""]) + table + rest)

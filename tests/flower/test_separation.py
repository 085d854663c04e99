"""What a program that came through Flower can reach, with a user of its own and without."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest
from tiny import tiny_recipe

from fedmrl.errors import UserError
from fedmrl.flower import separation
from fedmrl.flower.certificates import make_certificates
from fedmrl.flower.client_folder import ClientFolder
from fedmrl.flower.deal import deal

# Users that every Debian has; the test makes none.
AGENT, NODE = "games", "mail"

HOSTILE = """\
import json, os, socket, sys
folder = sys.argv[1]
def reads(path):
    try:
        return bool(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
    except OSError:
        return False
def connects(path):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        return True
    except OSError:
        return False
names = ["data.npz", "client.toml", "state", ".", "node/key"]
print(json.dumps({**{n: reads(os.path.join(folder, n)) for n in names}, "socket": connects(sys.argv[2])}))
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as other users")


@pytest.fixture
def client(monkeypatch):
    """A dealt client with an agent's state, in a folder that other users can enter."""
    monkeypatch.setattr(separation, "AGENT_USER", AGENT)
    monkeypatch.setattr(separation, "NODE_USER", NODE)
    monkeypatch.setattr(separation, "_check_installed", lambda *paths: None)  # this Python may be in root's home
    root = Path(tempfile.mkdtemp(dir="/var/tmp"))
    root.chmod(0o755)
    (path,) = deal(tiny_recipe(clients=2), root / "clients")[:1]
    make_certificates(root / "certificates", ["localhost"])
    made = ClientFolder.opened(path)
    made.connect("localhost:8443", root / "certificates" / "ca.crt")
    yield made
    shutil.rmtree(root)


def reached(client, user):
    """What a program of this user reaches."""
    import json

    program = ["/usr/bin/env", "-i", _system_python(), "-c", HOSTILE, str(client.path), client.config().socket]
    done = subprocess.run(program, user=user, group=user, extra_groups=[], capture_output=True, text=True, check=True, cwd="/")
    return json.loads(done.stdout)


def _system_python():
    """A Python that other users can start."""
    for name in ("/usr/bin/python3", sys.executable):
        if Path(name).exists():
            return name
    raise AssertionError


@needs_root
def test_with_a_user_of_its_own_what_comes_through_flower_reaches_the_socket_and_its_key_only(client, tmp_path):
    said = separation.separate(client, tmp_path / "units")
    agent = subprocess.Popen([sys.executable, "-m", "fedmrl", "client", "start", str(client.path), "--agent-only"])
    try:
        socket = Path(client.config().socket)
        end = time.monotonic() + 60
        while not socket.is_socket() and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(0.5)
        found = reached(client, NODE)
    finally:
        agent.terminate()
        agent.wait()
    assert found == {"data.npz": False, "client.toml": False, "state": False, ".": False, "node/key": True, "socket": True}
    assert any("Not protected" in line for line in said)


@needs_root
def test_with_one_user_for_both_it_reaches_everything(client, tmp_path):
    separation.separate(client, tmp_path / "units")
    assert all(reached(client, AGENT)[name] for name in ("data.npz", "client.toml", "."))


@needs_root
def test_the_units_name_both_users_and_the_folders(client, tmp_path):
    separation.separate(client, tmp_path / "units")
    agent, node = ((tmp_path / "units" / f"fedmrl-{name}.service").read_text() for name in ("agent", "node"))
    assert f"User={AGENT}\n" in agent and f"User={NODE}\n" in node
    assert str(client.key) in node and "--enable" not in node and f"InaccessiblePaths={client.path}/state" in node
    assert f"client start {client.path} --agent-only" in agent


@needs_root
def test_a_link_in_the_folder_of_the_node_user_leads_root_nowhere(client, tmp_path):
    separation.separate(client, tmp_path / "units")
    outside = client.path.parent / "outside"
    outside.write_text("root's own")
    outside.chmod(0o600)
    (client.node / "flower" / "link").symlink_to(outside)
    separation.separate(client, tmp_path / "units")
    assert (outside.stat().st_uid, outside.stat().st_mode & 0o777, outside.read_text()) == (0, 0o600, "root's own")


@needs_root
def test_a_link_in_the_clients_folder_is_not_followed(client, tmp_path):
    outside = client.path.parent / "outside"
    outside.write_text("root's own")
    (client.path / "link").symlink_to(outside)
    separation.separate(client, tmp_path / "units")
    assert outside.stat().st_uid == 0


@needs_root
def test_the_node_user_can_put_nothing_beside_its_key(client, tmp_path):
    separation.separate(client, tmp_path / "units")
    planting = ["/usr/bin/env", "-i", "/bin/ln", "-s", "/etc/passwd", f"{client.node}/.ca.crt.part"]
    assert subprocess.run(planting, user=NODE, group=NODE, extra_groups=[], capture_output=True, check=False).returncode
    kept = subprocess.run(["/bin/touch", client.node / "flower" / "x"], user=NODE, group=NODE, extra_groups=[], check=False)
    assert not kept.returncode, "Flower has a folder to write to"


@pytest.mark.parametrize("name", ["ca.crt", ".ca.crt.part", ".connection.toml.part"])
def test_the_servers_certificate_is_not_written_through_a_link(client, name):
    outside, link = client.path.parent / "outside", client.node / name
    outside.write_text("root's own")
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    with pytest.raises(UserError, match="is a link"):
        client.connect("localhost:8443", client.path.parents[1] / "certificates" / "ca.crt")
    assert outside.read_text() == "root's own"


@needs_root
@pytest.mark.parametrize("place", ["mine/state", "../elsewhere"])
def test_the_state_folder_is_the_one_in_client_toml(client, tmp_path, place):
    text = client.config_file.read_text()
    client.config_file.write_text(f"state = {place!r}\n" + text.replace("\nstate = ", "\n# state = "))
    separation.separate(client, tmp_path / "units")
    state = Path(client.config().state).resolve()
    assert pwd.getpwuid(state.stat().st_uid).pw_name == AGENT and not (client.path / "state").exists()
    agent, node = ((tmp_path / "units" / f"fedmrl-{name}.service").read_text() for name in ("agent", "node"))
    assert f"ReadWritePaths={state} " in agent and f"InaccessiblePaths={state}\n" in node


def test_setting_keys_again_replaces_them(tmp_path):
    path = tmp_path / "client.toml"
    path.write_text('# why\nname = "n"\nuids = [\n    8,\n]\n# socket_group = "flower"\n\n[bounds]\nuids = 3\n')
    for _ in range(2):
        separation._set_keys(path, {"uids": [9, 10], "socket_group": 'a"b'})
    found = {"name": "n", "uids": [9, 10], "socket_group": 'a"b', "bounds": {"uids": 3}}
    assert tomllib.loads(path.read_text()) == found and "# why" in path.read_text()


@needs_root
def test_users_can_be_separated_and_the_client_connected_again(client, tmp_path):
    key = client.key.read_bytes()
    separation.separate(client, tmp_path / "units")
    client.connect("localhost:9000", client.path.parents[1] / "certificates" / "ca.crt")
    separation.separate(client, tmp_path / "units")
    assert client.key.read_bytes() == key and "localhost:9000" in (tmp_path / "units" / "fedmrl-node.service").read_text()
    assert reached(client, NODE)["node/key"]


@pytest.mark.parametrize(("mode", "words"), [(0o700, "which the new users cannot enter.*as in /opt"), (0o755, None)])
def test_a_program_that_other_users_cannot_start_is_named(tmp_path, mode, words):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
        Path(root).chmod(0o755)
        program = Path(root, "own", "bin", "python")
        program.parent.mkdir(parents=True)
        program.touch()
        (link := Path(root, "python")).symlink_to(program)
        program.parents[1].chmod(mode)
        with pytest.raises(UserError, match=words) if words else nullcontext():
            separation._check_installed(str(link))


@needs_root
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(client, tmp_path):
    separation.separate(client, tmp_path / "units")

    def verified():
        words = ["systemd-analyze", "verify", *map(str, sorted((tmp_path / "units").iterdir()))]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert verified() == (0, "")
    unit = tmp_path / "units" / "fedmrl-node.service"
    unit.write_text(unit.read_text().replace("ProtectHome=yes", "ProtectHome=perhaps"))
    assert "Failed to parse protect home value" in verified()[1], "it reads what it is given"


def test_without_root_it_is_refused(client, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="only root can"):
        separation.separate(client, tmp_path / "units")
    assert not (tmp_path / "units").exists()

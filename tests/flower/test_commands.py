"""The commands of federations over a network, as far as they need no running server."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from tiny import tiny_recipe
from typer.testing import CliRunner

from fedmrl.cli import app
from fedmrl.data import sources
from fedmrl.data.partition import partition
from fedmrl.errors import UserError
from fedmrl.federation.setup import terms_elsewhere
from fedmrl.files import sha256_of_text
from fedmrl.flower.certificates import fingerprint_in, make_certificates, make_node_key
from fedmrl.flower.checks import approved_recipe
from fedmrl.flower.client_config import Bounds
from fedmrl.flower.client_folder import ClientFolder
from fedmrl.flower.deal import deal
from fedmrl.flower.flower_clients import FlowerClients, Members
from fedmrl.flower.local import free_ports
from fedmrl.flower.registration import register
from fedmrl.flower.server_config import read_config
from fedmrl.flower.server_folder import ServerFolder, run_recipe


def fedmrl(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def dealt(tmp_path):
    recipe = tiny_recipe(clients=3)
    file = tmp_path / "recipe.toml"
    file.write_text(recipe.to_toml())
    return recipe, file, deal(recipe, tmp_path / "clients")


def test_server_init_makes_a_folder_that_only_its_owner_enters(tmp_path):
    fedmrl("server", "init", tmp_path / "s", "--host", "fl.example.org", "--host", "10.0.0.1", "--port", 9443)
    server = ServerFolder.opened(tmp_path / "s")
    config = server.config()
    assert (config.hosts, config.port, config.listen) == (["fl.example.org", "10.0.0.1"], 9443, "0.0.0.0")
    assert server.address == "127.0.0.1:9443"
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o700
    assert server.authority.is_file() and "ca.crt" in (server.path / "README.md").read_text()


def test_server_init_overwrites_nothing(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UserError, match="is not empty"):
        fedmrl("server", "init", tmp_path, "--host", "localhost")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_server_init_with_a_bad_host_makes_nothing(tmp_path):
    with pytest.raises(UserError, match="no host name"):
        fedmrl("server", "init", tmp_path / "s", "--host", "a b")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [("min_clients = 0", "min_clients"), ("max_nrm = 3", "max_nrm"), ("port = '1'", "port"), ("x", "no TOML")],
)
def test_a_mistake_in_server_toml_is_told_with_its_key(tmp_path, line, words):
    ServerFolder.create(tmp_path / "s", ["localhost"])
    path = tmp_path / "s" / "server.toml"
    kept = [old for old in path.read_text().splitlines() if old.partition("=")[0].strip() != line.partition("=")[0].strip()]
    path.write_text("\n".join([*kept, line]))
    with pytest.raises(UserError, match=words):
        read_config(path)


@pytest.mark.parametrize(
    "words",
    [
        ["server", "start"],
        ["server", "register", "n", "k.pub"],
        ["client", "start"],
        ["client", "audit"],
        ["client", "check"],
    ],
)
def test_a_folder_that_is_none_is_named(tmp_path, words):
    command, rest = words[:2], words[2:]
    with pytest.raises(UserError, match="folder"):
        fedmrl(*command, tmp_path, *rest)


@pytest.fixture
def used_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_server_start_on_a_port_in_use_says_so(tmp_path, used_port, monkeypatch):
    monkeypatch.setattr("os.execve", pytest.fail)
    ServerFolder.create(tmp_path / "s", ["localhost"], "127.0.0.1", used_port)
    with pytest.raises(UserError, match=rf"port {used_port} of 127\.0\.0\.1 \(Address already in use\); .*server\.toml"):
        fedmrl("server", "start", tmp_path / "s")


def test_a_second_server_in_a_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmrl.cli.network._foreground", lambda *command: None)
    (port,) = free_ports(1)
    ServerFolder.create(tmp_path / "s", ["localhost"], "127.0.0.1", port)
    fedmrl("server", "start", tmp_path / "s")
    with pytest.raises(UserError, match="another server runs in"):
        fedmrl("server", "start", tmp_path / "s")


def test_client_init_makes_a_key_and_a_template_and_says_what_is_not_protected(tmp_path):
    make_certificates(tmp_path / "c", ["localhost"])
    done = fedmrl("client", "init", tmp_path / "k", "--server", "fl.example.org:8443", "--ca", tmp_path / "c" / "ca.crt")
    client = ClientFolder.opened(tmp_path / "k")
    assert client.public_key.is_file() and stat.S_IMODE(client.key.stat().st_mode) == 0o600
    assert client.connection().server == "fl.example.org:8443"
    assert "Not protected: agent and SuperNode run as one user" in " ".join(done.stderr.split())


@pytest.mark.parametrize("address", ["fl.example.org", ":1", "a:b", "a:99999", "a:0", "a b:8443", "::1:8443", "[a:1"])
def test_client_init_refuses_what_is_no_address_and_makes_nothing(tmp_path, address):
    make_certificates(tmp_path / "c", ["localhost"])
    with pytest.raises(UserError, match="host and port"):
        fedmrl("client", "init", tmp_path / "k", "--server", address, "--ca", tmp_path / "c" / "ca.crt")
    assert not (tmp_path / "k").exists()


def test_client_init_takes_an_ipv6_address(tmp_path):
    make_certificates(tmp_path / "c", ["localhost"])
    fedmrl("client", "init", tmp_path / "k", "--server", "[::1]:8443", "--ca", tmp_path / "c" / "ca.crt")
    assert ClientFolder.opened(tmp_path / "k").connection().server == "[::1]:8443"


@pytest.mark.parametrize(
    ("file", "words"),
    [("ca.key", "private key"), ("text", "no certificate"), ("nowhere.crt", "is not there"), (".", "cannot be read")],
)
def test_client_init_refuses_what_is_no_certificate_and_makes_nothing(tmp_path, file, words):
    make_certificates(tmp_path / "c", ["localhost"])
    (tmp_path / "c" / "text").write_text("x")
    with pytest.raises(UserError, match=rf"{words}.*name the ca\.crt"):
        fedmrl("client", "init", tmp_path / "k", "--server", "localhost:1", "--ca", tmp_path / "c" / file)
    assert not (tmp_path / "k").exists()


def test_client_init_can_be_repeated_with_the_same_key(tmp_path):
    make_certificates(tmp_path / "c", ["localhost"])
    fedmrl("client", "init", tmp_path / "k", "--server", "localhost:1", "--ca", tmp_path / "c" / "ca.crt")
    client = ClientFolder.opened(tmp_path / "k")
    key = client.key.read_bytes()
    client.public_key.unlink()
    client.authority.unlink()
    fedmrl("client", "init", tmp_path / "k", "--server", "localhost:2", "--ca", tmp_path / "c" / "ca.crt")
    assert client.key.read_bytes() == key and client.connection().server == "localhost:2"
    assert client.public_key.is_file() and client.authority.is_file()


def test_client_init_keeps_a_client_toml_that_is_there(tmp_path, dealt):
    _, _, (path, *_) = dealt
    before = (path / "client.toml").read_bytes()
    make_certificates(tmp_path / "c", ["localhost"])
    fedmrl("client", "init", path, "--server", "localhost:1", "--ca", tmp_path / "c" / "ca.crt")
    assert (path / "client.toml").read_bytes() == before


def test_a_damaged_connection_is_told_with_what_to_do(tmp_path):
    client = ClientFolder(tmp_path)
    client.node.mkdir()
    (client.node / "connection.toml").write_text("port = 9200")
    with pytest.raises(UserError, match=r"connection\.toml is damaged \(server: .*; correct it, or make another folder"):
        client.connection()


def test_client_check_says_what_would_leave(dealt):
    _, file, (path, *_) = dealt
    done = fedmrl("client", "check", path, "--recipe", file)
    assert "a round of FedMRL works" in done.stdout
    assert "small.header.weight" in done.stdout and "local." not in done.stdout
    assert not (path / "state").exists()


def test_client_check_without_a_recipe_says_that_nothing_was_trained(dealt):
    assert "No step was trained; give --recipe" in " ".join(fedmrl("client", "check", dealt[2][0]).stdout.split())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"socket": "s" * 200}, "longer than the 107 bytes"),
        ({"socket": "client.toml"}, "another file"),
        ({"socket_group": "no such group"}, "there is no such group"),
        ({"threads": 1025}, "threads is 1025"),
        ({"classes": ["a", "a"]}, "'a' twice"),
        ({"model": "own.py:make"}, "does not run on an input of shape"),
    ],
    ids=str,
)
def test_client_check_finds_what_would_stop_the_client_later(dealt, change, words):
    toml = dealt[2][0] / "client.toml"
    code = "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(7, 2))"
    (toml.parent / "own.py").write_text(code)
    toml.write_text(tomli_w.dumps({**tomllib.loads(toml.read_text()), **change}))
    with pytest.raises(UserError, match=words):
        fedmrl("client", "check", toml.parent)


def test_client_check_refuses_data_without_test_samples(dealt):
    path = dealt[2][0]
    with np.load(path / "data.npz") as arrays:
        np.savez(path / "data.npz", x=arrays["x"][:1], y=arrays["y"][:1])
    with pytest.raises(UserError, match="give at least one of each"):
        fedmrl("client", "check", path)


def test_client_check_tells_what_the_client_would_refuse(dealt):
    _, file, (path, *_) = dealt
    toml = path / "client.toml"
    toml.write_text(toml.read_text().replace('"fedmrl"', '"fml"'))
    with pytest.raises(UserError, match=r"would refuse the recipe: method\.name is 'fedmrl'"):
        fedmrl("client", "check", path, "--recipe", file)


def test_client_start_without_a_connection_starts_nothing(dealt, monkeypatch):
    monkeypatch.setattr("fedmrl.flower.client_folder.Agent", pytest.fail)
    with pytest.raises(UserError, match=r"connection\.toml cannot be read .* 'fedmrl client init'"):
        fedmrl("client", "start", dealt[2][0])


def test_client_start_on_a_port_in_use_says_what_may_hold_it(dealt, tmp_path, used_port, monkeypatch):
    monkeypatch.setattr("fedmrl.flower.client_folder.Agent", pytest.fail)
    make_certificates(tmp_path / "c", ["localhost"])
    ca, path = tmp_path / "c" / "ca.crt", dealt[2][0]
    fedmrl("client", "init", path, "--server", "localhost:1", "--ca", ca, "--port", used_port)
    with pytest.raises(UserError, match=rf"port {used_port} .* a SuperNode that was left behind may hold it"):
        fedmrl("client", "start", path)


def test_a_supernode_ends_when_its_client_is_killed():
    code = (
        "from threading import Event, Thread; from fedmrl.flower.client_folder import _keep_running\n"
        "Thread(target=_keep_running, args=(['sh', '-c', 'echo $$; exec sleep 100'], {}, Event())).start()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as client:
        node = int(client.stdout.readline())
        client.kill()
    try:
        until = time.monotonic() + 10
        while (alive := _runs(node)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not alive
    finally:
        if _runs(node):
            os.kill(node, signal.SIGKILL)


def _runs(pid):
    """Whether a process runs; one that has ended may wait for its parent to ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_client_audit_of_a_client_that_never_ran_is_empty(dealt):
    _, _, (path, *_) = dealt
    assert fedmrl("client", "audit", path, "--json").stdout.strip() == "[]"


def test_deal_gives_each_client_the_samples_that_it_has_in_a_simulation(tmp_path, dealt):
    recipe, file, paths = dealt
    assert "3 clients" in fedmrl("deal", file, tmp_path / "again").stdout
    data = sources.load(recipe.data)
    for own, path in zip(partition(recipe.partition, data, 3, recipe.seed), paths, strict=True):
        with np.load(path / "data.npz") as arrays:
            assert np.array_equal(arrays["x"], data.x[own.train]) and np.array_equal(arrays["y_test"], data.y[own.test])
        assert (tmp_path / "again" / path.name / "client.toml").read_bytes() == (path / "client.toml").read_bytes()


def test_deal_overwrites_nothing(dealt):
    _, file, paths = dealt
    with pytest.raises(UserError, match="is not empty"):
        fedmrl("deal", file, paths[0].parent)


@pytest.mark.parametrize("words", [[], ["quickstart", "--resume", "x"]])
def test_federation_run_wants_a_recipe_or_a_run_to_resume(tmp_path, words):
    ServerFolder.create(tmp_path / "s", ["localhost"])
    with pytest.raises(UserError, match="give a recipe to start, or --resume"):
        fedmrl("federation", "run", *words, "--server", tmp_path / "s")


def test_federation_run_without_clients_starts_nothing(tmp_path):
    server = ServerFolder.create(tmp_path / "s", ["localhost"])
    with pytest.raises(UserError, match="no client is registered"):
        fedmrl("federation", "run", "quickstart", "--server", tmp_path / "s")
    assert not list(server.recipes.iterdir())


@pytest.mark.parametrize("again", [False, True], ids=["of a recipe", "of what was printed"])
def test_federation_recipe_prints_what_clients_get_and_its_sha256(tmp_path, dealt, again):
    recipe, file, _ = dealt
    server = ServerFolder.create(tmp_path / "s", ["localhost"])
    for number in range(2):
        register(server.clients, f"c{number}", f"{number}" * 64)
    done = fedmrl("federation", "recipe", file, "--server", server.path)
    if again:
        file.write_text(done.stdout)
        done = fedmrl("federation", "recipe", file, "--server", server.path)
    sent = FlowerClients(
        None, list, run_recipe(recipe, 2), terms_elsewhere(recipe, (1, 16, 16), list("abcd")), server.config(), Members(run="r")
    )._text
    assert done.stdout == sent
    assert f"for 2 clients: {sha256_of_text(sent)}" in " ".join(done.stderr.split())
    approved_recipe(done.stdout, Bounds(recipe_sha256=[sha256_of_text(sent)], min_batch_size=1))


def test_a_run_that_is_not_there_cannot_be_resumed(tmp_path):
    ServerFolder.create(tmp_path / "s", ["localhost"])
    with pytest.raises(UserError, match="there is no run old to resume"):
        fedmrl("federation", "run", "--resume", "old", "--server", tmp_path / "s")


@pytest.mark.parametrize("name", ["../../x", "a b", "", "-a", "a" * 49])
@pytest.mark.parametrize(
    "words", [["run", "quickstart", "--name"], ["run", "--resume"], ["results"], ["status", "--log"]], ids=" ".join
)
def test_what_cannot_name_a_run_is_refused_before_anything_is_written(tmp_path, words, name):
    server = ServerFolder.create(tmp_path / "s", ["localhost"], "127.0.0.1", 1)
    register(server.clients, "north", "0" * 64)
    before = sorted(tmp_path.rglob("*"))
    option = [*words[:-1], f"{words[-1]}={name}"] if words[-1].startswith("--") else [*words, "--", name]
    with pytest.raises(UserError, match="is no name of a run"):
        fedmrl("federation", *option[:1], "--server", server.path, *option[1:])
    assert sorted(tmp_path.rglob("*")) == before


def test_registering_without_a_running_server_registers_nothing(tmp_path):
    server = ServerFolder.create(tmp_path / "s", ["localhost"], "127.0.0.1", 1)
    make_node_key(tmp_path / "north")
    with pytest.raises(UserError, match="flwr supernode"):
        fedmrl("server", "register", tmp_path / "s", "north", tmp_path / "north.pub")
    assert server.registered() == []


def test_registering_a_client_again_without_a_running_server_keeps_it(tmp_path):
    server = ServerFolder.create(tmp_path / "s", ["localhost"], "127.0.0.1", 1)
    make_node_key(tmp_path / "north")
    north = register(server.clients, "north", fingerprint_in(tmp_path / "north.pub"))
    with pytest.raises(UserError, match="flwr supernode"):
        fedmrl("server", "register", tmp_path / "s", "north", tmp_path / "north.pub")
    assert server.registered() == [north]


def test_the_command_line_loads_neither_flower_nor_torch():
    code = "import sys, fedmrl.cli; print(sorted({'flwr', 'torch', 'cryptography'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"

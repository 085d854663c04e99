"""A client's folder, made by `fedmrl client init`: the organisation's TOML, its key, and how it reaches the server."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple, Self

import tomli_w
from pydantic import Field

from fedmrl.config import Recipe
from fedmrl.engines import ReferenceEngine, Turn
from fedmrl.errors import UserError
from fedmrl.federation.launch import pick_device
from fedmrl.federation.setup import prepare_alone
from fedmrl.files import write_whole
from fedmrl.flower import programs
from fedmrl.flower.agent import Agent
from fedmrl.flower.certificates import check_address, check_authority, make_node_key
from fedmrl.flower.checks import Messages, Refused, approved_recipe, check_data
from fedmrl.flower.client_config import ClientConfig, load_organisation, read_config, template
from fedmrl.flower.listener import check_socket
from fedmrl.flower.server_folder import for_clients, run_recipe
from fedmrl.messages import copy
from fedmrl.methods import Round
from fedmrl.schema import Part, checked

CONFIG = "client.toml"
CONNECTION = "connection.toml"
_PAUSE = 15.0  # seconds until a SuperNode is started again


class Connection(Part):
    """`connection.toml`: how the SuperNode reaches the server."""

    server: str
    """Its host and port."""
    port: int = Field(9200, ge=1, le=65535)
    """A port of the SuperNode's own, on this machine only."""


class Checked(NamedTuple):
    """What `ClientFolder.check` found."""

    lines: list[str]
    leaving: list[list[str]]
    """Name, shape and type of each tensor that would leave."""


class ClientFolder:
    """The folder of a client."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.config_file = self.path / CONFIG
        self.node = self.path / "node"
        """What the SuperNode reads: the key and the server's certificate; and where Flower keeps its files."""
        self.key, self.authority = self.node / "key", self.node / "ca.crt"
        self.public_key = self.node / "key.pub"

    @classmethod
    def opened(cls, path: Path) -> Self:
        """The folder, if it is one."""
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is no client's folder (it has no {CONFIG}); make one by 'fedmrl client init'")
        return cls(path)

    @classmethod
    def create(cls, path: Path, server: str, authority: Path, port: int = 9200) -> Self:
        """Makes a client's folder with a TOML to fill in, unless there is one, and connects it to a server."""
        check_address(server)  # before there is a folder
        check_authority(authority)
        client = cls(path)
        client.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        client.connect(server, authority, port)
        if not client.config_file.exists():
            write_whole(client.config_file, template())
        return client

    def connect(self, server: str, authority: Path, port: int = 9200) -> None:
        """Makes the client's key and writes how it reaches the server; `authority` is the server's `ca.crt`."""
        host, _, number = server.rpartition(":")
        if not host or not number.isdecimal():
            raise UserError(f"server is {server!r}; give host and port, as in fl.example.org:8443")
        if not authority.is_file():
            raise UserError(f"{authority} is not there; it is the ca.crt that the server's operator gave you")
        certificate = authority.read_text(encoding="utf-8")
        self.claim_node()
        make_node_key(self.key)
        write_whole(self.authority, certificate)
        write_whole(self.node / CONNECTION, tomli_w.dumps({"server": server, "port": port}))

    def claim_node(self) -> None:
        """Makes the SuperNode's folder one that only this user can write; raises `UserError` if it holds links.

        Programs that come through Flower may have had it before, and root would write through a link of theirs.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.node.is_symlink():
            raise UserError(f"{self.node} is a link; remove it, and run 'fedmrl client init' again")
        self.node.mkdir(exist_ok=True, mode=0o700)
        folder = os.open(self.node, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fchown(folder, os.geteuid(), -1)
            os.fchmod(folder, os.fstat(folder).st_mode & 0o750)
        finally:
            os.close(folder)
        for path in self.node.iterdir():
            if path.is_symlink():
                raise UserError(f"{path} is a link, and may lead anywhere; remove it, and run 'fedmrl client init' again")

    def config(self) -> ClientConfig:
        """The organisation's TOML."""
        return read_config(self.config_file)

    def connection(self) -> Connection:
        """How the SuperNode reaches the server."""
        path = self.node / CONNECTION
        try:
            plain = tomllib.loads(path.read_text(encoding="utf-8"))
            return checked(path, Connection, plain, "correct it, or make another folder by 'fedmrl client init'")
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); make it by 'fedmrl client init'") from error
        except ValueError as error:
            raise UserError(f"{path} is no TOML ({error})") from error

    def check(self, recipe: Recipe | None = None) -> "Checked":
        """Reads the data, builds the model, and trains it for a round of this recipe, if one is given; raises `UserError` for
        what is wrong.
        """
        organisation = load_organisation(self.config_file)
        check_socket(organisation.config)
        organisation.member(0, 0)  # has training and test samples
        organisation.try_model()
        samples, label = organisation.data, organisation.model.label
        lines = [f"{self.config_file} is in order: {len(samples.y)} samples of shape {list(samples.shape)}, model {label}"]
        if recipe is None:
            return Checked([*lines, "No step was trained; give --recipe to train one and to see what would leave"], [])
        recipe = for_clients(run_recipe(recipe, recipe.clients))
        try:
            approved = approved_recipe(recipe.to_toml(), organisation.config.bounds)
            check_data(approved, organisation)
            data, member = organisation.in_run(approved, 0)
            setting = prepare_alone(approved, pick_device(organisation.config.device), 0, member, data)
            messages = Messages(setting.terms, organisation.config.bounds)
        except Refused as refused:
            raise UserError(f"this client would refuse the recipe: {refused}") from refused
        net = copy(setting.fresh_net(0).state_dict())
        trained = ReferenceEngine(setting).train(Round(0, approved.rounds), [Turn(0, net, None, 0)])[0]
        lines.append(f"a round of {approved.method.title} works: {len(member.train)} training samples, loss {trained.loss:.4f}")
        tensors = messages.upload_tensors.items()
        return Checked(lines, [[name, "×".join(map(str, form.sizes)), form.type_name] for name, form in tensors])

    def agent(self) -> list[str]:
        """The command that starts the agent alone."""
        return [sys.executable, "-m", "fedmrl", "client", "start", "--agent-only", str(self.path)]

    def supernode(self, socket: Path | None = None) -> tuple[list[str], Mapping[str, str]]:
        """The command that starts the SuperNode, and its environment; the socket is the one in `client.toml` unless given."""
        connection, path = self.connection(), socket or Path(self.config().socket)
        command = programs.supernode(connection.server, self.authority, self.key, path, connection.port)
        return command, programs.environment(self.node / "flower")


def serve(client: ClientFolder, agent_only: bool = False) -> None:
    """Runs a client's agent and its SuperNode until it is interrupted."""
    node_command = None if agent_only else client.supernode()  # read first, so that a mistake in it starts nothing
    if not agent_only:
        advice = "a SuperNode that was left behind may hold it: end it, or change port in node/connection.toml"
        programs.check_port("127.0.0.1", client.connection().port, advice)
    with Agent(load_organisation(client.config_file)) as agent:
        stopped = Event()
        node = Thread(target=_keep_running, args=(*node_command, stopped), name="supernode") if node_command else None
        if node is not None:
            node.start()
        try:
            agent.serve()
        except KeyboardInterrupt:
            pass
        finally:
            stopped.set()
            if node is not None:
                node.join()


def _keep_running(command: Sequence[str], env: Mapping[str, str], stopped: Event) -> None:
    """Runs the SuperNode, and starts it again if it ends: the server refuses a key that was in use a minute ago."""
    tied = programs.ending_with_parent(command)
    while not stopped.is_set():
        process = subprocess.Popen(tied, env=dict(env), stdin=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and not stopped.wait(0.5):
            pass
        programs.stop([process])
        stopped.wait(_PAUSE)

"""A client's folder, made by `fedmrl client init`: the organisation's TOML, its key, and how it reaches the server."""

import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import tomli_w
from pydantic import Field

from fedmrl.errors import UserError
from fedmrl.files import write_whole
from fedmrl.flower import programs
from fedmrl.flower.certificates import make_node_key
from fedmrl.flower.client_config import ClientConfig, read_config
from fedmrl.schema import Part, checked

CONFIG = "client.toml"
CONNECTION = "connection.toml"


class Connection(Part):
    """`connection.toml`: how the SuperNode reaches the server."""

    server: str
    """Its host and port."""
    port: int = Field(9200, ge=1, le=65535)
    """A port of the SuperNode's own, on this machine only."""


class ClientFolder:
    """The folder of a client."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.config_file = self.path / CONFIG
        self.node = self.path / "node"
        """What the SuperNode reads: the key and the server's certificate; and where Flower keeps its files."""
        self.key, self.authority = self.node / "key", self.node / "ca.crt"

    @classmethod
    def opened(cls, path: Path) -> Self:
        """The folder, if it is one."""
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is no client's folder (it has no {CONFIG}); make one by 'fedmrl client init'")
        return cls(path)

    def connect(self, server: str, authority: Path, port: int = 9200) -> None:
        """Makes the client's key and writes how it reaches the server; `authority` is the server's `ca.crt`."""
        host, _, number = server.rpartition(":")
        if not host or not number.isdecimal():
            raise UserError(f"server is {server!r}; give host and port, as in fl.example.org:8443")
        if not authority.is_file():
            raise UserError(f"{authority} is not there; it is the ca.crt that the server's operator gave you")
        make_node_key(self.key)
        self.node.chmod(0o700)
        shutil.copyfile(authority, self.authority)
        write_whole(self.node / CONNECTION, tomli_w.dumps({"server": server, "port": port}))

    def config(self) -> ClientConfig:
        """The organisation's TOML."""
        return read_config(self.config_file)

    def connection(self) -> Connection:
        """How the SuperNode reaches the server."""
        path = self.node / CONNECTION
        try:
            return checked(path, Connection, tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); make it by 'fedmrl client init'") from error
        except ValueError as error:
            raise UserError(f"{path} is no TOML ({error})") from error

    def agent(self) -> list[str]:
        """The command that starts the agent alone."""
        return [sys.executable, "-m", "fedmrl", "client", "start", "--agent-only", str(self.path)]

    def supernode(self) -> tuple[list[str], Mapping[str, str]]:
        """The command that starts the SuperNode, and its environment."""
        connection, socket = self.connection(), Path(self.config().socket)
        command = programs.supernode(connection.server, self.authority, self.key, socket, connection.port)
        return command, programs.environment(self.node / "flower")

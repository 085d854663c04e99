"""A server's folder, made by `fedmrl server init`: settings, certificates, registered clients, recipes and runs."""

import ipaddress
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from fedmrl.config import Recipe
from fedmrl.errors import UserError
from fedmrl.files import write_whole
from fedmrl.flower import programs
from fedmrl.flower.certificates import fingerprint_in, make_certificates
from fedmrl.flower.registration import Registered, read_registered, register
from fedmrl.flower.server_config import CONFIG, TEMPLATE, ServerConfig, read_config

FOLDER = "FEDMRL_SERVER"
"""The environment variable with the server's folder, by which the ServerApp finds it."""

_APP = """\
# The app that 'fedmrl federation run' hands to Flower. Its code is in the installed package, on both sides.

[project]
name = "fedmrl-federation"
version = "1.0.0"
description = "Federations of clients with different models"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedmrl"

[tool.flwr.app.components]
serverapp = "fedmrl.flower.server_app:app"
clientapp = "fedmrl.flower.shim:app"

[tool.flwr.app.config]
run = ""
"""

_README = """\
# The server of a federation

| file | what it is |
| --- | --- |
| `server.toml` | settings; read when a run starts |
| `certificates/ca.crt` | give this to every client: by it they recognise this server |
| `certificates/ca.key`, `certificates/server.key` | secret: whoever has them can pass as this server |
| `clients.json` | the registered clients: number, name, fingerprint of the key |
| `recipes/` | the recipe of each run |
| `runs/` | a folder for each run, as `fedmrl run` writes it: `fedmrl report runs/NAME` makes its page |
| `flower/` | Flower's own files, with its database |

    fedmrl server start DIR                         # runs until it is stopped; keep it running by a service manager
    fedmrl server register DIR NAME KEY.pub         # a client that sent you its public key
    fedmrl federation run RECIPE --server DIR       # starts a run and returns
    fedmrl federation status --server DIR
    fedmrl federation results NAME --server DIR

A run that stopped goes on by `fedmrl federation run --resume NAME --server DIR`.

**Who can reach the port can start programs.** Flower takes `flwr run` from anyone who reaches this server's port, without a
password, and runs what is sent inside the SuperNodes and on this machine. Let only clients through, in a network of their
own, and let a reverse proxy refuse Flower's control paths from outside.
"""


class ServerFolder:
    """The folder of a server."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.certificates = self.path / "certificates"
        self.authority = self.certificates / "ca.crt"
        self.clients = self.path / "clients.json"
        self.recipes = self.path / "recipes"
        self.runs = self.path / "runs"
        self.app = self.path / "app"
        self.home = self.path / "flower"

    @classmethod
    def opened(cls, path: Path) -> Self:
        """The folder, if it is one."""
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is no server's folder (it has no {CONFIG}); make one by 'fedmrl server init'")
        return cls(path)

    @classmethod
    def create(cls, path: Path, hosts: Sequence[str], listen: str = "0.0.0.0", port: int = 8443) -> Self:
        """Makes the folder, with new certificates."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} is not empty; choose a new folder")
        try:
            ipaddress.ip_address(listen)
        except ValueError as error:
            raise UserError(f"listen is {listen!r}; it must be an address of this machine, as in 0.0.0.0") from error
        server = cls(path)
        make_certificates(server.certificates, hosts)
        server.path.chmod(0o700)
        for folder in (server.recipes, server.runs, server.app, server.home):
            folder.mkdir()
        write_whole(server.app / "pyproject.toml", _APP)
        write_whole(server.path / "README.md", _README)
        write_whole(server.path / CONFIG, TEMPLATE.format(hosts=json.dumps(list(hosts)), listen=listen, port=port))
        return server

    def config(self) -> ServerConfig:
        """The settings in `server.toml`."""
        return read_config(self.path / CONFIG)

    @property
    def address(self) -> str:
        """Where programs on this machine reach the server."""
        config = self.config()
        anywhere = ipaddress.ip_address(config.listen).is_unspecified
        return f"{'127.0.0.1' if anywhere else config.listen}:{config.port}"

    # ---- through Flower's programs ----

    def start(self) -> tuple[list[str], Mapping[str, str]]:
        """The command that starts the server, and its environment."""
        config = self.config()
        programs.connect(self.home, self.address, self.authority)
        command = programs.superlink(self.certificates, self.home / "superlink.db", config.listen, config.port)
        return command, {**programs.environment(self.home), FOLDER: str(self.path)}

    def registered(self) -> list[Registered]:
        """The registered clients, by number."""
        return read_registered(self.clients)

    def register(self, name: str, key: Path) -> Registered:
        """Registers a client's public key under a name, here and with Flower; the server has to run."""
        new = register(self.clients, name, fingerprint_in(key))
        try:
            self._flwr("supernode", "register", str(key.resolve()), "--name", name)
        except UserError as error:
            if "already in use" not in str(error):  # it was registered before
                write_whole(self.clients, json.dumps([c.model_dump() for c in self.registered() if c != new], indent=1) + "\n")
                raise
        return new

    def run(self, name: str, recipe: Recipe | None = None) -> str:
        """Starts a run of a recipe, or goes on with the run of this name; returns Flower's id of it."""
        stored = self.recipes / f"{name}.toml"
        if recipe is None:
            if not (self.runs / name / "config.toml").exists() and not stored.exists():
                raise UserError(f"there is no run {name} to resume in {self.runs}")
        elif stored.exists() or (self.runs / name).exists():
            raise UserError(f"there is a run {name} already; choose another name, or resume it")
        else:
            write_whole(stored, recipe.to_toml())
        try:
            return str(self._flwr("run", str(self.app), "--run-config", f"run={json.dumps(name)}")["run-id"])
        except UserError:
            if recipe is not None:
                stored.unlink()
            raise

    def listed(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """Flower's runs, or one of them."""
        found: list[dict[str, Any]] = self._flwr("list", *(["--run-id", run_id] if run_id else []))["runs"]
        return found

    def log(self, run_id: str) -> str:
        """What a run has said so far."""
        return programs.output(self.home, "log", run_id, "--show")

    def _flwr(self, *words: str) -> dict[str, Any]:
        if not os.access(self.path, os.W_OK):
            raise UserError(f"{self.path} cannot be written; run this as the server's user")
        programs.connect(self.home, self.address, self.authority)
        return programs.flwr(self.home, *words)

"""A server's folder, made by `fedmrl server init`: settings, certificates, registered clients, recipes and runs."""

import fcntl
import ipaddress
import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedmrl.config import Recipe, load_named
from fedmrl.data import sources
from fedmrl.data.sources import AtClients
from fedmrl.errors import UserError
from fedmrl.files import write_whole
from fedmrl.flower import programs
from fedmrl.flower.certificates import fingerprint_in, make_certificates
from fedmrl.flower.registration import Registered, read_registered, register, write_registered
from fedmrl.flower.server_config import CONFIG, TEMPLATE, ServerConfig, read_config
from fedmrl.results import read_outcome, read_records
from fedmrl.results.result import ended

FOLDER = "FEDMRL_SERVER"
"""The environment variable with the server's folder, by which the ServerApp finds it."""

_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,47}")

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


def check_name(name: str) -> None:
    """Raises `UserError` for what cannot name a run."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name of a run; use letters, digits, hyphens and underscores, at most 48, "
            "the first a letter or digit"
        )


class RunStatus(NamedTuple):
    """Where a run is."""

    run: str
    state: str
    rounds: int
    total: int
    clients: int
    """Clients that have taken part."""
    left_out: int
    """Replies that did not count."""


def run_recipe(recipe: Recipe, clients: int) -> Recipe:
    """The recipe as a federation runs it: the data's shape and classes in place of the data, for so many clients."""
    if not clients:
        raise UserError("no client is registered; register them by 'fedmrl server register'")
    if not isinstance(recipe.data, AtClients):
        data = sources.load(recipe.data)
        known = AtClients(shape=list(data.shape), classes=list(data.classes), vocabulary=data.vocabulary)
        recipe = recipe.model_copy(update={"data": known})
    return recipe.model_copy(update={"clients": clients})


def for_clients(recipe: Recipe) -> Recipe:
    """The recipe as clients get it, who refuse imports and paths, and need neither."""
    everybody = 1.0 if isinstance(recipe.participation, str) else recipe.participation
    return recipe.model_copy(update={"imports": [], "participation": everybody})


def recipe_text(recipe: Recipe) -> str:
    """The recipe's text that clients get, whose SHA-256 they may have approved."""
    return for_clients(recipe).to_toml()


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

    def lock(self) -> None:
        """Locks the folder until this process ends, or the program that it becomes."""
        folder = os.open(self.path, os.O_RDONLY)
        os.set_inheritable(folder, True)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(folder)
            raise UserError(f"another server runs in {self.path}; stop it first") from error

    def start(self) -> tuple[list[str], Mapping[str, str]]:
        """The command that starts the server, and its environment."""
        config = self.config()
        advice = "stop the program that uses it, or change listen and port in server.toml"
        programs.check_port(config.listen, config.port, advice)
        programs.connect(self.home, self.address, self.authority)
        command = programs.superlink(self.certificates, self.home / "superlink.db", config.listen, config.port)
        return command, {**programs.environment(self.home), FOLDER: str(self.path)}

    def registered(self) -> list[Registered]:
        """The registered clients, by number."""
        return read_registered(self.clients)

    def register(self, name: str, key: Path) -> Registered:
        """Registers a client's public key under a name, here and with Flower; the server has to run."""
        before = self.registered()
        new = register(self.clients, name, fingerprint_in(key))
        try:
            self._flwr("supernode", "register", str(key.resolve()), "--name", name)
        except UserError as error:
            if "already in use" not in str(error):  # Flower has it from before
                if new not in before:
                    write_registered(self.clients, before)
                raise
        return new

    def run(self, name: str, recipe: Recipe | None = None) -> str:
        """Starts a run of a recipe, or goes on with the run of this name; returns Flower's id of it."""
        check_name(name)
        stored = self.recipes / f"{name}.toml"
        if recipe is None:
            if not (self.runs / name / "config.toml").exists() and not stored.exists():
                raise UserError(f"there is no run {name} to resume in {self.runs}")
        elif stored.exists() or (self.runs / name).exists():
            raise UserError(f"there is a run {name} already; choose another name, or resume it")
        else:
            write_whole(stored, recipe.to_toml())
        try:
            started = str(self._flwr("run", str(self.app), "--run-config", f"run={json.dumps(name)}")["run-id"])
        except UserError:
            if recipe is not None:
                stored.unlink()
            raise
        write_whole(self._id_file(name), started)
        return started

    def run_folder(self, name: str) -> Path:
        """The folder of the run of this name."""
        check_name(name)
        return self.runs / name

    def _id_file(self, name: str) -> Path:
        """Holds Flower's id of the last start of a run."""
        return self.recipes / f"{name}.id"

    def free_name(self, stem: str) -> str:
        """A name for a new run."""
        clean = re.sub("[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:40] or "run"
        return next(name for n in count(1) if not (self.recipes / f"{(name := f'{clean}-{n}')}.toml").exists())

    def flower_status(self, run_id: str) -> str:
        """Flower's own status of a run, as in `running` or `finished:failed`."""
        found = self._flwr("list", "--run-id", run_id)["runs"]
        return str(found[0]["status"]) if found else "unknown"

    def log(self, name: str) -> str:
        """What a run has said since it was last started."""
        check_name(name)
        path = self._id_file(name)
        if not path.exists():
            raise UserError(f"there is no run {name}; see 'fedmrl federation status'")
        programs.connect(self.home, self.address, self.authority)
        return programs.output(self.home, "log", path.read_text(), "--show")

    def status(self) -> list[RunStatus]:
        """All runs, by name."""
        return [self._status(path.stem) for path in sorted(self.recipes.glob("*.toml"))]

    def _status(self, name: str) -> RunStatus:
        folder = self.runs / name
        total = load_named(self.recipes / f"{name}.toml").recipe.rounds
        records = read_records(folder / "rounds.jsonl") if (folder / "rounds.jsonl").exists() else []
        state = self._state(name)
        members = {client for record in records for client in record.participants}
        return RunStatus(name, state, len(records), total, len(members), sum(len(record.left_out) for record in records))

    def _state(self, name: str) -> str:
        if ended(self.runs / name):
            return str(read_outcome(self.runs / name).status)
        try:
            flower = self.flower_status(self._id_file(name).read_text())
        except (UserError, OSError):
            return "not known, as the server does not answer"
        resume = f"stopped; go on by --resume {name}, its log says why"
        return resume if flower.startswith("finished") else flower

    def _flwr(self, *words: str) -> dict[str, Any]:
        if not os.access(self.path, os.W_OK):
            raise UserError(f"{self.path} cannot be written; run this as the server's user")
        programs.connect(self.home, self.address, self.authority)
        return programs.flwr(self.home, *words)

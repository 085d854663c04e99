"""The server's list of registered clients: registration binds a name to a key and gives the client its number."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedmrl.errors import UserError
from fedmrl.files import write_whole
from fedmrl.schema import Part, checked, parsed

ClientName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
_NAMES = "letters, digits, dots, hyphens and underscores, at most 63, the first a letter or digit"


class Registered(Part):
    """A client that may take part."""

    number: Annotated[int, Field(ge=0)]
    """Its number in every run, by which it is drawn."""
    name: ClientName
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The fingerprint of its public key, by which its node is recognised whatever id Flower gives it."""


def read_registered(path: Path) -> list[Registered]:
    """The registered clients, by number; none if there is no list yet."""
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    advice = "restore it from a copy"
    found = checked(path, list[Registered], parsed(path, text, advice), advice)
    if [client.number for client in found] != list(range(len(found))):
        raise UserError(f"{path} is damaged: its clients are not numbered 0, 1, 2 …; restore it from a copy")
    for what in ("name", "key"):
        values = [getattr(client, what) for client in found]
        if len(set(values)) < len(values):
            raise UserError(f"{path} is damaged: two clients have the same {what}; restore it from a copy")
    return found


def register(path: Path, name: str, key: str) -> Registered:
    """Adds a client to the list and returns it with its number; registering the same one again changes nothing."""
    clients = read_registered(path)
    for client in clients:
        if (client.name, client.key) == (name, key):
            return client
        if client.name == name:
            raise UserError(f"{name} is already registered with another key; choose another name")
        if client.key == key:
            raise UserError(f"this key is already registered, as {client.name}; each client needs a key of its own")
    try:
        new = Registered(number=len(clients), name=name, key=key)
    except ValueError as error:
        raise UserError(f"{name!r} is no name of a client; use {_NAMES}") from error
    write_registered(path, [*clients, new])
    return new


def write_registered(path: Path, clients: Sequence[Registered]) -> None:
    """Replaces the list."""
    write_whole(path, json.dumps([client.model_dump() for client in clients], indent=1) + "\n")

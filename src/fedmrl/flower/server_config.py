"""The server's settings, `server.toml`."""

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedmrl.errors import UserError
from fedmrl.schema import first_problem

CONFIG = "server.toml"


class ServerConfig(BaseModel):
    """What the operator decides."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    hosts: Annotated[list[str], Field(min_length=1)]
    """The names and addresses by which clients reach the server; its certificate is for these."""
    listen: str = "0.0.0.0"
    port: Annotated[int, Field(ge=1, le=65535)] = 8443
    min_clients: Annotated[int, Field(ge=1)] = 2
    """A round needs this many good replies."""
    wait_seconds: Annotated[float, Field(ge=0)] = 120
    """How long a run waits for registered clients before its first round."""
    round_seconds: Annotated[float, Field(gt=0)] = 3600
    """The time that clients have to reply."""
    attempts: Annotated[int, Field(ge=1)] = 3
    """How often a round is tried."""
    pause_seconds: Annotated[float, Field(ge=0)] = 60
    """The pause before a round is tried again."""
    max_norm: Annotated[float, Field(gt=0)] = 1e4
    """The largest norm of an upload, and of a round's result; not above the clients' `max_received_norm`, or they refuse it."""
    max_megabytes: Annotated[float, Field(gt=0)] = 64
    """The largest reply."""
    max_samples: Annotated[int, Field(ge=1)] = 1_000_000
    """The most training or test samples of a client, whose number weighs its upload."""


TEMPLATE = """\
# The server of a federation. Clients are registered by 'fedmrl server register'.

hosts = {hosts}            # names and addresses by which clients reach this server; its certificate is for these
listen = "{listen}"        # the address to listen on
port = {port}

min_clients = 2            # a round needs this many good replies, else it is tried again
wait_seconds = 120         # how long a run waits for registered clients before its first round
round_seconds = 3600       # the time that clients have to reply
attempts = 3               # how often a round is tried; after that the run stops, and can be resumed
pause_seconds = 60         # the pause before a round is tried again

max_norm = 1e4             # an upload with a larger norm is left out; not above the clients' bounds.max_received_norm
max_megabytes = 64         # so is a larger reply
max_samples = 1_000_000    # a client that says it has more training or test samples does not join
"""


def read_config(path: Path) -> ServerConfig:
    """Reads a `server.toml`."""
    try:
        return ServerConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}") from error
    except ValueError as error:
        raise UserError(f"{path} is no TOML ({error})") from error

"""The command line. Commands import heavy modules when they run, so that help and completion are fast."""

import io
import os
import signal
import sys
from functools import partial
from typing import Annotated, Any

import typer

from fedmrl.cli import home, listing, network, paper, running, showing, starting
from fedmrl.cli.plain import Commands, PlainGroup
from fedmrl.cli.terminal import end, say
from fedmrl.errors import DivergedError, UserError, cause
from fedmrl.version import __version__


def _interrupt(before: Any, number: int, frame: Any) -> None:
    """Raises KeyboardInterrupt; while torch loads, whose C++ code an exception would abort, does as `before`."""
    loading = getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False)
    if loading and callable(before):
        before(number, frame)
    raise KeyboardInterrupt


class _Program(PlainGroup):
    def invoke(self, ctx: Any) -> Any:
        """Runs a command; if it is interrupted, ends with a sentence instead of a traceback."""
        for stop in (signal.SIGINT, signal.SIGTERM):  # both signals let a run save its last round
            if (before := signal.getsignal(stop)) is not signal.SIG_IGN:
                signal.signal(stop, partial(_interrupt, before))
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            trains = ctx.invoked_subcommand in ("run", "compare")
            end("stopped before training began" if trains else "stopped; repeat the command to start again", 130)


app = Commands(cls=_Program, pretty_exceptions_enable=False)
for _command in (
    running.run,
    running.compare,
    starting.init,
    showing.report,
    home.predict,
    home.export,
    home.modes,
    paper.reproduce,
    running.bench,
    showing.partition,
    showing.leaves,
    listing.methods,
    listing.models,
    listing.recipes,
    listing.data,
    network.deal,
):
    app.command()(_command)
for _name in ("server", "client", "federation", "demo"):
    app.add_typer(getattr(network, _name), name=_name)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"fedmrl {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Model-heterogeneous federated learning: FedMRL and the seven methods it is compared with."""


def main() -> None:
    """Runs the program; every error ends in a sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the terminal lacks become question marks
    try:
        app(standalone_mode=True, prog_name="fedmrl")
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except UserError as error:
        end(str(error), 2)
    except DivergedError as error:
        end(str(error), 3)
    except MemoryError as error:
        end(f"there is not enough memory ({cause(error)}); choose fewer samples or smaller models", 2)
    except OSError as error:
        end(f"{error.filename or 'a file'}: {error.strerror or error}; name another file or folder", 2)

"""The program's entry point, which handles signals while the command line loads."""

import os
import signal
import sys
from contextlib import suppress
from typing import Any


def main() -> None:
    """Loads the command line, which takes seconds, and runs it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise Ctrl-C is ignored on purpose
        signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    from fedmrl import cli

    try:
        cli.main()
    except SystemExit as end:
        if end.code != 130:
            raise
        # After a Ctrl-C inside `exec`, which imports use, Python would exit by SIGINT whatever the exit code.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(130)


def _stop(*_: Any) -> None:
    """Exits at once, as an exception during an import may be mistaken for a failed import."""
    trains = sys.argv[1:2] in (["run"], ["compare"])
    what = b"before training began" if trains else b"before the command began"
    os.write(2, b"fedmrl: stopped " + what + b"\n")
    os._exit(130)


if __name__ == "__main__":
    main()

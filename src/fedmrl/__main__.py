"""The program's entry: what stops it while it is still loading is answered in a sentence, too."""

import os
import signal
import sys
from contextlib import suppress
from typing import Any


def main() -> None:
    """Load the command line, which takes seconds, and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it was started to ignore Ctrl-C
        signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    from fedmrl import cli

    try:
        cli.main()
    except SystemExit as end:
        if end.code != 130:
            raise
        # After a Ctrl-C inside `exec`, which imports use, Python would end by SIGINT whatever exit code it is given.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(130)


def _stop(*_: Any) -> None:
    """End here and now: an exception that is raised in the middle of an import may be taken for a failed one."""
    os.write(2, b"fedmrl: stopped before training began\n")
    os._exit(130)


if __name__ == "__main__":
    main()

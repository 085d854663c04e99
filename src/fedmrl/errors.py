"""The ways a run can end that are not a bug in fedmrl, each a sentence for the person at the keyboard."""

from pathlib import Path


class UserError(Exception):
    """Bad input: what is wrong, where, and what to do. The command line prints it and exits with 2."""


class DivergedError(Exception):
    """A client's loss or weights stopped being finite. The command line exits with 3."""

    def __init__(self, client: int, round_: int, reason: str) -> None:
        super().__init__(reason)
        self.client = client
        self.round = round_
        """Counted from 1."""

    @classmethod
    def of(cls, client: int, round_: int, what: str) -> "DivergedError":
        """What became NaN or infinite, in which round, counted from 1."""
        return cls(
            client, round_, f"client {client}'s {what} became NaN or infinite in round {round_}; try a smaller training.lr"
        )


class InterruptedRun(Exception):  # noqa: N818  (an interruption is not an error)
    """The user stopped the run; its last whole round is in its folder, if it has one."""

    def __init__(self, done: int, rounds: int, folder: Path | None) -> None:
        kept = ", which is kept" if folder else ""
        super().__init__(f"stopped after round {done} of {rounds}{kept}" if done else "stopped before a round was whole")
        self.folder = folder


CODE_FAILS = (Exception, SystemExit)
"""What to catch of somebody else's code: it may also call `sys.exit`, which would end the program without a word."""


def cause(error: BaseException) -> str:
    """What somebody else's code raised, in a line.

    >>> cause(ValueError("too long\\nand more")), cause(AssertionError())
    ('ValueError: too long', 'AssertionError')
    """
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.strip()}" if first else type(error).__name__

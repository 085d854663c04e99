"""Exceptions that are not bugs in fedmrl, each with a sentence for the user."""

from pathlib import Path


class UserError(Exception):
    """Bad input: what is wrong, where, and what to do. The command line prints it and exits with 2."""


class UserCodeError(UserError):
    """Code of the user's own failed, or returned something wrong. A run that it stops can go on once it is mended."""


class DivergedError(Exception):
    """A client's loss or weights became NaN or infinite. The command line exits with 3."""

    def __init__(self, client: int, round_: int, reason: str) -> None:
        super().__init__(reason)
        self.client = client
        self.round = round_
        """Counted from 1."""

    @classmethod
    def of(cls, client: int, round_: int, what: str) -> "DivergedError":
        """The error for a client whose `what` became NaN or infinite in a round, counted from 1."""
        return cls(
            client, round_, f"client {client}'s {what} became NaN or infinite in round {round_}; try a smaller training.lr"
        )


class InterruptedRun(Exception):  # noqa: N818  (an interruption is not an error)
    """The user stopped the run; its folder, if any, has the last complete round."""

    def __init__(self, done: int, rounds: int, folder: Path | None) -> None:
        kept = ", which is kept" if folder else ""
        super().__init__(f"stopped after round {done} of {rounds}{kept}" if done else "stopped before the first round ended")
        self.folder = folder


CODE_FAILS = (Exception, SystemExit)
"""The exceptions to catch from users' code, which may call `sys.exit` and end the program silently."""


def cause(error: BaseException) -> str:
    """An exception from users' code as one line.

    >>> cause(ValueError("too long\\nand more")), cause(AssertionError())
    ('ValueError: too long', 'AssertionError')
    """
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.strip()}" if first else type(error).__name__

"""What leaves a client in a run, and what stays with it."""

from collections.abc import Sequence
from typing import Any

from fedmrl.schema import Part


class TensorOut(Part):
    """A tensor of a message: its name, shape, type and size."""

    name: str
    """`*` in a name is the number of a round."""
    shape: list[int | str]
    """Sizes that vary are given by name with their maximum, as in `rank ≤ 9`."""
    dtype: str
    bytes: int
    """At most, where the shape varies."""
    always: bool
    """Whether every message has it; else it comes in place of another, or not at all."""


class Leaves(Part):
    """The tensors that a client sends and receives in a round, beside the message's counts and losses, and what stays."""

    up: list[TensorOut]
    down: list[TensorOut]
    up_bytes: int
    """The largest upload."""
    down_bytes: int
    """The largest message from the server."""
    stays: list[str]

    def rows(self) -> list[dict[str, Any]]:
        """A row per tensor, as plain data, with its direction."""
        both: Sequence[tuple[str, list[TensorOut]]] = (("up", self.up), ("down", self.down))
        return [{"direction": direction, **tensor.model_dump()} for direction, tensors in both for tensor in tensors]

    def __str__(self) -> str:
        lines = [f"A client sends at most {self.up_bytes:,} bytes a round and receives at most {self.down_bytes:,}."]
        for row in self.rows():
            shape = " × ".join(map(str, row["shape"])) or "a single number"
            rest = "" if row["always"] else ", or another form, or nothing"
            lines.append(f"{row['direction']:>4}  {row['name']}  {shape}  {row['dtype']}  {row['bytes']:,} bytes{rest}")
        return "\n".join([*lines, f"Stays with the client: {', '.join(self.stays)}."])

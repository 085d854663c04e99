"""Frames to clients and back over Flower's grid: who is connected, sending, waiting until a deadline."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedmrl.flower.certificates import fingerprint_of
from fedmrl.flower.registration import Registered
from fedmrl.flower.shim import frame_of, record

_FIRST_POLL, _LAST_POLL, _GROWTH = 0.1, 2.0, 1.3  # seconds between polls


@dataclass(frozen=True)
class Unanswered:
    """Why a client gave no reply, as a clause about the client."""

    reason: str


class Post:
    """Sends frames to clients by their numbers and waits for the replies.

    A client is recognised by the key with which its node authenticates, never by the node's id.
    """

    def __init__(self, grid: Grid, registered: Callable[[], Sequence[Registered]]) -> None:
        self._grid, self._registered = grid, registered

    def connected(self) -> dict[int, int]:
        """The node of each registered client that is connected now, by the client's number."""
        numbers = {client.key: client.number for client in self._registered()}
        found: dict[int, int] = {}
        for node in self._grid.get_nodes():
            if (number := numbers.get(fingerprint_of(node.public_key) or "")) is not None:
                found[number] = node.node_id
        return found

    def exchange(self, frames: Mapping[int, bytes], kind: str, group: str, seconds: float) -> dict[int, bytes | Unanswered]:
        """Each client's reply to its frame, or why there is none, after at most this time."""
        until = time.monotonic() + seconds
        nodes = self.connected()
        replies: dict[int, bytes | Unanswered] = {k: Unanswered("is not connected") for k in frames if k not in nodes}
        asked = [client for client in frames if client in nodes]
        messages = [
            Message(record(frames[client]), dst_node_id=nodes[client], message_type=kind, ttl=seconds, group_id=group)
            for client in asked
        ]
        sent: Iterable[str | None] = self._grid.push_messages(messages) if messages else []
        waiting: dict[str, int] = {}
        for client, message in zip(asked, sent, strict=False):
            if message is not None:
                waiting[message] = client
        replies |= {k: Unanswered("could not be sent its message") for k in asked if k not in waiting.values()}
        pause = _FIRST_POLL
        while waiting and (left := until - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(pause * _GROWTH, _LAST_POLL)
            for reply in self._grid.pull_messages(list(waiting)):
                # An error comes from the server's own node: only the message that it answers says whom it is about.
                client_or_none = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client_or_none is not None:
                    replies[client_or_none] = _content(reply)
                    pause = _FIRST_POLL
        return replies | {k: Unanswered(f"did not reply within {seconds:g} seconds") for k in waiting.values()}


def _content(reply: Any) -> bytes | Unanswered:
    if reply.has_error():
        words = " ".join(str(reply.error.reason or "no reason was given").split())
        return Unanswered(f"sent an error: {words[:300]}")
    try:
        return frame_of(reply.content)
    except ValueError:
        return Unanswered("sent something that is not one frame")

"""The Unix socket at which an agent listens: one request and one reply a connection, read concurrently, within a deadline."""

import grp
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fedmrl.errors import UserError
from fedmrl.flower.client_config import ClientConfig
from fedmrl.flower.frame import FrameError, receive, send
from fedmrl.flower.protocol import Failure, to_bytes

log = logging.getLogger("fedmrl.agent")

_LONGEST_PATH = 107  # bytes of a Unix socket's path, a limit of Linux

# Fixed replies, which tell nothing of the client. They are not in the audit log, or anyone could fill the disk by them.
_BUSY = to_bytes(Failure(reason="busy", sentence="too many requests are waiting; try again"))
_UNLISTED = to_bytes(Failure(reason="refused", sentence="this user may not connect"))


class Listener:
    """Accepts connections until it is closed.

    Only whole requests reach `handle(data, uid)`; the reply to broken ones is `refused(failure, uid)`. Users who are not
    listed, and all when there are too many connections, get a fixed reply. Before that, the connection that has been sending
    for longest is closed, so that idle ones keep nobody out.
    """

    def __init__(
        self, config: ClientConfig, handle: Callable[[bytearray, int], bytes], refused: Callable[[Failure, int], bytes]
    ) -> None:
        self.config, self.handle, self.refused = config, handle, refused
        self.path = Path(config.socket)
        self._lock, self._serving = threading.Lock(), threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._sending: dict[socket.socket, None] = {}
        """Connections whose request is not complete, the oldest first."""
        self._closed = False
        self._socket = self._bound()

    def _bound(self) -> socket.socket:
        group = check_socket(self.config)
        if self.path.is_socket():
            if _answers(self.path):
                raise UserError(f"another agent listens at {self.path}; stop it, or choose another socket")
            self.path.unlink()  # left by an agent that was killed
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # nobody may connect before the group is set
        try:
            listening.bind(str(self.path))
            os.chown(self.path, -1, group)
            self.path.chmod(0o660)
            listening.listen(64)
        except OSError as error:
            listening.close()
            raise UserError(f"cannot listen at {self.path} ({error.strerror}); choose another socket") from error
        finally:
            os.umask(before)
        listening.settimeout(0.2)  # between looks at whether it was closed
        return listening

    def serve(self) -> None:
        """Serves until `close` is called from another thread."""
        with self._serving:
            while not self._closed:
                try:
                    connection, _ = self._socket.accept()
                except TimeoutError:
                    continue
                except OSError as error:  # out of file descriptors
                    log.warning("a connection could not be accepted (%s)", error)
                    time.sleep(0.2)
                    continue
                self._take(connection)

    def close(self) -> None:
        """Stops `serve`; requests that have arrived are still answered."""
        self._closed = True
        with self._serving:
            self._socket.close()
            self.path.unlink(missing_ok=True)
        with self._lock:
            threads = list(self._open.values())
            for waiting in self._sending:
                _end(waiting)
        for thread in threads:
            thread.join()

    def _take(self, connection: socket.socket) -> None:
        with self._lock:
            full = len(self._open) >= self.config.max_connections
            if full and self._sending:
                oldest = next(iter(self._sending))
                del self._sending[oldest]
                _end(oldest)
                log.warning("closed a connection that had not sent its request, as there were too many")
            elif full:
                log.warning("refused user %d, as there were too many connections", _peer(connection)[1])
                _answer(connection, _BUSY, seconds=1)
                connection.close()
                return
            thread = threading.Thread(target=self._serve_one, args=[connection], name="agent-connection", daemon=True)
            self._open[connection], self._sending[connection] = thread, None
        thread.start()

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            reply = self._reply(connection, *_peer(connection))
            _answer(connection, reply, self.config.seconds)
        except Exception:
            log.exception("a connection failed")
        finally:
            with self._lock:
                self._sending.pop(connection, None)
                del self._open[connection]
            connection.close()

    def _reply(self, connection: socket.socket, pid: int, uid: int) -> bytes:
        log.info("connection from process %d of user %d", pid, uid)
        if self.config.uids and uid not in self.config.uids:
            log.warning("refused user %d, who is not one of uids", uid)
            return _UNLISTED
        try:
            data = receive(connection, self.config.seconds, max_body=self.config.bounds.max_message_bytes)
        except FrameError as error:
            if "after 0 bytes" in str(error):  # somebody looked whether an agent listens
                return b""
            return self.refused(Failure(reason="bad-message", sentence=str(error)), uid)
        finally:
            with self._lock:
                self._sending.pop(connection, None)
        return self.handle(data, uid)


def check_socket(config: ClientConfig) -> int:
    """The number of the group that may connect, -1 for the agent's own; raises `UserError` if the socket cannot be made."""
    path = Path(config.socket)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise UserError(f"socket is {path}, longer than the {_LONGEST_PATH} bytes that a socket's path may have")
    if path.exists() and not path.is_socket():
        raise UserError(f"socket is {path}, which is another file or a folder; cannot listen there, choose another socket")
    if config.socket_group is None:
        return -1
    try:
        return grp.getgrnam(config.socket_group).gr_gid
    except (KeyError, ValueError) as error:
        raise UserError(f"socket_group is {config.socket_group!r}, and there is no such group") from error


def _peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _answer(connection: socket.socket, reply: bytes, seconds: float) -> None:
    if not reply:
        return
    try:
        send(connection, reply, seconds)
    except OSError as error:  # the peer has gone, or does not read
        log.warning("a reply was not taken (%s)", error)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("the connection had ended")

"""The agent's socket: who is refused without a trace in the audit log."""

import threading

import pytest
import torch
from organisations import small_quickstart, write_client

from fedmrl.federation.setup import prepare
from fedmrl.flower.client_config import load_organisation
from fedmrl.flower.frame import exchange
from fedmrl.flower.listener import Listener
from fedmrl.flower.protocol import Hello, read_reply, to_bytes


def test_when_too_many_requests_wait_the_refusal_is_not_in_the_audit_log(tmp_path):
    path = write_client(tmp_path / "c", prepare(small_quickstart(), torch.device("cpu")), 0, max_connections=2)
    working, done = threading.Semaphore(0), threading.Event()

    def handle(data, uid):
        working.release()
        done.wait(30)
        return bytes(data)

    def refused(failure, uid):
        pytest.fail("this would write to the audit log")

    config = load_organisation(path).config
    listener = Listener(config, handle, refused)
    asked = to_bytes(Hello(run="r", client=0, recipe=""))
    waiting = [threading.Thread(target=exchange, args=(config.socket, asked, 30)) for _ in range(2)]
    serving = threading.Thread(target=listener.serve)
    serving.start()
    try:
        for thread in waiting:
            thread.start()
            assert working.acquire(timeout=30)
        reply, _ = read_reply(exchange(config.socket, asked, 30))
        assert (reply.reason, reply.sentence) == ("busy", "too many requests are waiting; try again")
    finally:
        done.set()
        for thread in waiting:
            thread.join()
        listener.close()
        serving.join()

"""What passes the socket: in a round of FedMRL no private tensor and no data, and the audit log has all of it."""

import hashlib

import pytest
import torch
from organisations import CPU, Peer, serving, small_quickstart, write_client

from fedmrl.data.plan import Samples
from fedmrl.federation.setup import prepare
from fedmrl.flower.audit import read_audit
from fedmrl.flower.frame import decode
from fedmrl.flower.protocol import TrainOk
from fedmrl.methods import FedMRL

FEWEST = 16  # bytes: fewer may occur by chance


class Recording(Peer):
    """A peer that keeps all bytes that passed the socket."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.passed = []

    def ask_bytes(self, data):
        found = super().ask_bytes(data)
        self.passed += [self.sent, self.received]
        return found


def rows(name, tensor):
    """A tensor's bytes and those of each of its rows, unless they are too few or all the same."""
    parts = {name: tensor} | ({f"{name}[{i}]": row for i, row in enumerate(tensor)} if tensor.ndim > 1 else {})
    for key, part in parts.items():
        content = part.contiguous().numpy().tobytes()
        if len(content) >= FEWEST and part.unique().numel() > 1:
            yield key, content


def private(peer, setting, states):
    """The bytes of every private tensor of a client: its models and projector before and after, its data raw and prepared."""
    tensors = {
        f"{when} {name}": t for when, state in states.items() for name, t in state.items() if not name.startswith("small.")
    }
    assert any("projector" in name for name in tensors) and any("local.extractor" in name for name in tensors)
    member = setting.members[0]
    samples = Samples(setting.data, CPU, torch.float32)
    for part in (member.train, member.test):
        for position in part:
            tensors[f"sample {position}"] = samples.x[position]
            tensors[f"sample {position}, standardised"] = samples.take(part[:1] * 0 + position)[0][0]
    found = {key: content for name, tensor in tensors.items() for key, content in rows(name, tensor)}
    assert len(found) > len(tensors)
    return found


def leaked(peer, setting, states):
    everything = b"".join(peer.passed)
    return [key for key, content in private(peer, setting, states).items() if content in everything]


def three_rounds(tmp_path):
    """Three rounds of FedMRL with every kind of message; gives what of the client's passed the socket."""
    recipe = small_quickstart(rounds=3)
    setting = prepare(recipe, CPU)
    with serving(write_client(tmp_path / "client", setting, 0)) as agent:
        peer, content, states = Recording(agent, recipe), setting.server_start(), {}
        peer.hello()
        states["initial"] = agent._run.state(None)
        for round_ in range(3):
            since = round_ - 1 if round_ else None
            reply, content = peer.train(round_, since, content)
            assert isinstance(reply, TrainOk), reply
            peer.train(round_, since, {})  # a lie, whose refusal passes as well
            peer.evaluate(round_, content, modes=list(recipe.method.modes))
            states[f"round {round_}"] = agent._run.state(round_)
        return peer, leaked(peer, setting, states), content


def test_no_private_tensor_and_no_sample_passes_the_socket(tmp_path):
    peer, found, content = three_rounds(tmp_path)
    assert found == []
    everything = b"".join(peer.passed)
    assert all(tensor.numpy().tobytes() in everything for tensor in content.values()), "what is shared is found"


@pytest.mark.parametrize("name", ["local.header.bias", "projector.bias", "local.extractor.fc2.weight"])
def test_a_private_tensor_that_is_put_into_the_upload_is_found(name, tmp_path, monkeypatch):
    upload = FedMRL.upload

    def leaking(method, net, sums, round_):
        content = upload(method, net, sums, round_)
        hidden = net.state_dict()[next(key for key in net.state_dict() if key.endswith(name) or key == name)].flatten()
        room = max(content.values(), key=torch.Tensor.numel).view(-1)
        room[: len(hidden)] = hidden[: len(room)]
        return content

    monkeypatch.setattr(FedMRL, "upload", leaking)
    _, found, _ = three_rounds(tmp_path)
    assert any(name in key for key in found)


def test_a_private_tensor_that_is_added_to_the_upload_is_held_back(tmp_path, monkeypatch):
    upload = FedMRL.upload
    monkeypatch.setattr(
        FedMRL,
        "upload",
        lambda method, net, sums, round_: upload(method, net, sums, round_) | {"p": net.projector.bias.detach()},
    )
    recipe = small_quickstart()
    setting = prepare(recipe, CPU)
    with serving(write_client(tmp_path / "client", setting, 0)) as agent:
        peer = Recording(agent, recipe)
        peer.hello()
        reply, content = peer.train(0, None, setting.server_start())
        assert "no part of this method's messages" in reply.sentence and not content


def test_the_audit_log_has_each_message_and_array_that_passed(tmp_path):
    peer, _, _ = three_rounds(tmp_path)
    entries = read_audit(tmp_path / "client" / "state")
    arrays = [entry for entry in entries if "name" in entry]
    messages = [entry for entry in entries if "name" not in entry]
    expected, frames = [], []
    for data in peer.passed:
        frame = decode(data)
        frames.append(frame.message["type"])
        expected += [(name, hashlib.sha256(array.tobytes()).hexdigest()) for name, array in frame.arrays.items()]
    refused = frames.count("error")
    assert refused == 3 and [entry["type"] for entry in messages].count("train") == frames.count("train") - refused
    left = [hashlib.sha256(data).hexdigest() for data in peer.passed[1::2]]
    assert [entry["sha256"] for entry in messages if entry["direction"] == "out"] == left, "refusals as well"
    assert [(entry["name"], entry["sha256"]) for entry in arrays] == expected
    assert {entry["sha256"] for entry in messages} <= {hashlib.sha256(data).hexdigest() for data in peer.passed}
    assert {entry["direction"] for entry in arrays if entry["type"] == "train-ok"} == {"out"}
    told = next(entry["told"] for entry in messages if entry["type"] == "train-ok")
    assert told.keys() == {"loss", "finite", "flops", "correct"}

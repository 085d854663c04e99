"""States by round: the last two, atomic, checked."""

import json
import resource

import pytest
import torch

from fedmrl import UserError
from fedmrl.flower.states import Index, RunStates


def state(value, size=4):
    return {"local.w": torch.full((size,), float(value)), "n": torch.tensor(value)}


def new(folder):
    return RunStates(folder / "run", Index(run="run", client=3, recipe_sha256="ab"))


def train(states, round_, since, value, reply=b"reply"):
    index = states.prepared(round_, since, None if value is None else state(value), reply, f"asked {round_}")
    states.commit(index)


def digests(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_holds_the_state_of_the_last_training_and_the_one_that_this_continued_from(tmp_path):
    states = new(tmp_path)
    assert states.index.held == [None] and not (tmp_path / "run").exists()
    train(states, 0, None, 10)
    assert states.index.held == [None, 0]
    train(states, 2, 0, 12)
    assert states.index.held == [0, 2]
    train(states, 5, 0, 15)
    assert states.index.held == [0, 5] and [held.earlier for held in states.index.states.values()] == [1, 2]
    assert len(list((tmp_path / "run").glob("*.safetensors"))) == 2 and len(list((tmp_path / "run").iterdir())) == 4
    found = RunStates.open(tmp_path / "run")
    assert found.index == states.index
    assert torch.equal(found.load(5)["local.w"], state(15)["local.w"]) and torch.equal(found.load(0)["n"], torch.tensor(10))
    assert found.reply() == b"reply"


def test_a_training_that_diverged_counts_and_leaves_the_states_as_they_were(tmp_path):
    states = new(tmp_path)
    train(states, 0, None, 10)
    train(states, 1, 0, None)
    assert states.index.held == [None, 0] and states.index.last_round == 1


def test_what_was_prepared_and_not_committed_has_no_effect(tmp_path):
    states = new(tmp_path)
    train(states, 0, None, 10)
    before = digests(tmp_path)
    states.prepared(1, 0, state(11), b"other", "asked 1")
    found = RunStates.open(tmp_path / "run")
    assert found.index.held == [None, 0] and found.reply() == b"reply"
    found.discard()
    assert digests(tmp_path) == before


@pytest.fixture
def full_disk():
    """A disk on which no file may be larger than 2 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_on_a_full_disk_nothing_is_half_written_and_the_earlier_state_is_still_good(tmp_path, full_disk):
    states = new(tmp_path)
    with pytest.raises(OSError, match="too large"):
        states.prepared(0, None, state(10, size=10_000), b"reply", "asked")
    assert not (tmp_path / "run").exists()
    train(states, 0, None, 10)
    before = digests(tmp_path)
    for large, reply in ((10_000, b"reply"), (4, bytes(10_000))):
        with pytest.raises(OSError, match="too large"):
            states.prepared(1, 0, state(11, size=large), reply, "asked")
        assert digests(tmp_path) == before
    train(states, 1, 0, 11)
    assert RunStates.open(tmp_path / "run").index.held == [0, 1]


@pytest.mark.parametrize("name", ["client-00003-round-00001.safetensors", "reply-round-00002.frame", "index.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_a_damaged_file_is_refused_by_its_name(tmp_path, name, damage):
    states = new(tmp_path)
    train(states, 0, None, 10)
    train(states, 1, 0, 11)
    path = tmp_path / "run" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    if (name, damage) == ("index.json", "delete"):
        assert RunStates.open(tmp_path / "run") is None
        return
    with pytest.raises(UserError, match=name):
        found = RunStates.open(tmp_path / "run")
        found.load(0)
        found.reply()


@pytest.mark.parametrize("plain", ["[]", "{}", "3", "[" * 100_000, '{"sha256": ""}', '{"sha256": null}'])
def test_an_index_that_is_something_else_is_refused_by_its_name(tmp_path, plain):
    (tmp_path / "index.json").write_text(plain)
    with pytest.raises(UserError, match=r"index\.json is damaged"):
        RunStates.open(tmp_path)


def test_an_index_is_checked_by_its_own_sha256(tmp_path):
    states = new(tmp_path)
    train(states, 0, None, 10)
    path = tmp_path / "run" / "index.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, "client": 4}))
    with pytest.raises(UserError, match="SHA-256 differs"):
        RunStates.open(tmp_path / "run")

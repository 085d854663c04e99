"""Damage to a run that was stopped: whatever it is, it is named and refused, and never ends in other numbers."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from test_resume import stop_after
from tiny import tiny_recipe

import fedmrl
from fedmrl import InterruptedRun, UserError


@pytest.fixture(scope="module", params=["device", "disk"])
def stopped(request, tmp_path_factory):
    """A run after two of three rounds, with its states in memory or on disk."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(InterruptedRun):
        fedmrl.run(tiny_recipe("fedmrl"), out=folder, store=request.param, on_round=stop_after(2))
    return folder, request.param


def client(folder: Path, number: int = 0) -> Path:
    return sorted(folder.glob("checkpoint/client-*"))[number]


def server(folder: Path) -> Path:
    return next(folder.glob("checkpoint/server-*"))


def replaced(path: Path, by: Path) -> None:
    path.write_bytes(by.read_bytes())


def swapped(folder: Path) -> None:
    first, second = client(folder).read_bytes(), client(folder, 1).read_bytes()
    client(folder).write_bytes(second)
    client(folder, 1).write_bytes(first)


def flipped(path: Path, place: float) -> None:
    """One bit, that far into the file."""
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def retyped(path: Path, change) -> None:
    save_file({name: change(tensor) for name, tensor in load_file(path).items()}, path)


def index_with(folder: Path, **changes) -> None:
    path = folder / "checkpoint" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def clients_named_otherwise(folder: Path) -> None:
    names = json.loads((folder / "checkpoint" / "state.json").read_text())["clients"]
    one, other, *_ = names
    index_with(folder, clients={**names, one: names[other], other: names[one]})


WAYS = {
    "the server's file is a client's": lambda f: replaced(server(f), client(f)),
    "a client's file is the server's": lambda f: replaced(client(f), server(f)),
    "two clients' files are swapped": swapped,
    "a client's file is another's": lambda f: replaced(client(f), client(f, 1)),
    "one bit of the server, early": lambda f: flipped(server(f), 0.02),
    "one bit of the server, in the middle": lambda f: flipped(server(f), 0.5),
    "one bit of the server, the last": lambda f: flipped(server(f), 1.0),
    "one bit of a client, early": lambda f: flipped(client(f), 0.02),
    "one bit of a client, in the middle": lambda f: flipped(client(f), 0.5),
    "one bit of a client, the last": lambda f: flipped(client(f), 1.0),
    "the server in 32 bits": lambda f: retyped(server(f), lambda t: t.float()),
    "a client in 32 bits": lambda f: retyped(client(f), lambda t: t.float() if t.is_floating_point() else t),
    "the server's weights negated": lambda f: retyped(server(f), lambda t: -t),
    "a client's weights a little larger": lambda f: retyped(client(f), lambda t: t * (1 + 1e-12)),
    "the server cut short": lambda f: server(f).write_bytes(server(f).read_bytes()[:-8]),
    "a client cut short": lambda f: client(f).write_bytes(client(f).read_bytes()[:-8]),
    "the server empty": lambda f: server(f).write_bytes(b""),
    "a client empty": lambda f: client(f).write_bytes(b""),
    "the server gone": lambda f: server(f).unlink(),
    "a client gone": lambda f: client(f).unlink(),
    "the index with fewer rounds": lambda f: index_with(f, rounds=1, last_round={"0": 0}, times={"0": 1}),
    "the index with other seconds": lambda f: index_with(f, seconds=0.5),
    "the index with clients swapped": clients_named_otherwise,
    "the index without its checksum": lambda f: index_with(f, sha256=None),
    "the index without the files' checksums": lambda f: index_with(f, files=None),
    "the index with a checksum of nothing": lambda f: index_with(f, files={}),
    "the index empty": lambda f: (f / "checkpoint" / "state.json").write_text(""),
    "another learning rate in config.toml": lambda f: edited(f / "config.toml", "lr = 0.05", "lr = 0.06"),
    "another seed in config.toml": lambda f: edited(f / "config.toml", "seed = 0", "seed = 1"),
    "another d1 in config.toml": lambda f: edited(f / "config.toml", "d1 = 3", "d1 = 2"),
    "a comment in config.toml": lambda f: (f / "config.toml").write_text("# mine\n" + (f / "config.toml").read_text()),
    "another split": lambda f: edited(f / "split.json", "1", "2"),
    "the split gone": lambda f: (f / "split.json").unlink(),
    "the inputs' fingerprints gone": lambda f: (f / "inputs.json").unlink(),
    "a record changed": lambda f: edited(f / "rounds.jsonl", '"loss": ', '"loss": 1'),
    "the records in another order": lambda f: (f / "rounds.jsonl").write_text(
        "\n".join((f / "rounds.jsonl").read_text().splitlines()[::-1]) + "\n"
    ),
    "a record gone": lambda f: (f / "rounds.jsonl").write_text((f / "rounds.jsonl").read_text().splitlines()[0] + "\n"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_damaged_is_named_and_refused(stopped, way, tmp_path):
    source, store = stopped
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    WAYS[way](folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as refusal:
        fedmrl.run(fedmrl.load_recipe(folder), out=folder, resume=True, store=store)
    said = str(refusal.value)
    assert str(folder) in said and len(said.splitlines()) == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before, "nothing is changed by refusing"


def test_undamaged_it_goes_on_to_the_numbers_of_one_that_was_never_stopped(stopped, tmp_path):
    source, store = stopped
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    log = folder / "rounds.jsonl"
    log.write_text(log.read_text() + '{"round": 3, "cut off in the mid')  # as a power cut leaves it
    resumed = fedmrl.run(fedmrl.load_recipe(folder), out=folder, resume=True, store=store)
    assert resumed.states_sha256 == fedmrl.run(tiny_recipe("fedmrl")).states_sha256


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, fedmrl.run(tiny_recipe("fedmrl"), out=folder)


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


def resumed(folder):
    told = []
    return fedmrl.run(fedmrl.load_recipe(folder), out=folder, resume=True, on_notice=told.append), told


def with_a_digit_changed(text: str, after: str) -> str:
    """The text with another digit in the first number after a word."""
    at = next(at for at in range(text.index(after) + len(after), len(text)) if text[at].isdigit())
    return f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}"


@pytest.mark.parametrize("word", ['"own"', '"flops"', '"inference"', '"train_samples"', '"sha256"'])
def test_a_digit_changed_in_a_finished_runs_summary_is_noticed(finished, copied, word):
    path = copied / "summary.json"
    path.write_text(with_a_digit_changed(path.read_text(), word))
    with pytest.raises(UserError, match=r"summary.json is damaged or was changed: its SHA-256 does not match; run it again"):
        fedmrl.RunResult.read(copied)
    again, told = resumed(copied)
    assert any("summary.json is damaged; the run resumes" in line for line in told)
    assert again.accuracy == finished[1].accuracy and again.clients == finished[1].clients
    assert fedmrl.RunResult.read(copied).accuracy == finished[1].accuracy, "what was made anew is whole"


def test_an_undamaged_summary_is_taken_as_it_is(finished, copied):
    before = (copied / "summary.json").read_bytes()
    again, told = resumed(copied)
    assert (again.plain(), told) == (finished[1].plain(), [])
    assert (copied / "summary.json").read_bytes() == before


def test_a_summary_of_a_version_without_checksums_is_taken_and_told(finished, copied):
    path = copied / "summary.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in plain.items() if key not in ("files", "sha256")}))
    again, told = resumed(copied)
    assert again.plain() == finished[1].plain()
    assert told == [f"{path} was written by a version without checksums; it is used unchecked"]
    assert fedmrl.RunResult.read(copied).accuracy == finished[1].accuracy


def test_a_digit_changed_in_a_finished_runs_rounds_is_named_and_refused(copied):
    path = copied / "rounds.jsonl"
    path.write_text(with_a_digit_changed(path.read_text(), '"loss"'))
    with pytest.raises(UserError, match=r"rounds.jsonl is damaged or was changed"):
        resumed(copied)

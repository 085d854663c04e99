"""The audit log: a line that was changed or removed shows."""

import json
import resource

import numpy as np
import pytest

from fedmrl import UserError
from fedmrl.files import sha256_of_bytes
from fedmrl.flower.audit import COLUMNS, Audit, Passed, read_audit, table

ARRAYS = {"small.w": np.ones((2, 3), np.float32), "small.b": np.zeros(2)}


def passed(round_):
    return [
        Passed("in", {"type": "train", "round": round_}, ARRAYS),
        Passed("out", {"type": "train-ok", "round": round_, "loss": 0.5}, ARRAYS),
    ]


def filled(folder, rounds=3):
    audit = Audit(folder)
    for round_ in range(rounds):
        audit.record("r", round_, 1000, passed(round_))
    return folder / "audit.jsonl"


def test_a_log_is_read_back_and_gone_on_with(tmp_path):
    filled(tmp_path, 2)
    filled(tmp_path, 1)
    entries = read_audit(tmp_path)
    assert [entry["type"] for entry in entries] == [*["train"] * 3, *["train-ok"] * 3] * 3
    assert [entry["round"] for entry in entries[::6]] == [0, 1, 0]
    assert entries[1]["shape"] == [2, 3] and entries[1]["bytes"] == 24 and entries[3]["told"] == {"loss": 0.5}
    assert read_audit(tmp_path / "nowhere") == []


@pytest.mark.parametrize("removed", [0, 1, 7, -1])
def test_a_removed_line_shows(tmp_path, removed):
    path = filled(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    del lines[removed]
    path.write_text("".join(lines))
    with pytest.raises(UserError, match=r"changed or removed"):
        read_audit(tmp_path)
    with pytest.raises(UserError, match=r"changed or removed"):
        Audit(tmp_path)


@pytest.mark.parametrize("changed", [0, 5, -1])
def test_a_changed_line_shows(tmp_path, changed):
    path = filled(tmp_path)
    lines = path.read_text().splitlines()
    entry = json.loads(lines[changed])
    lines[changed] = json.dumps({**entry, "bytes": entry["bytes"] + 1})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"audit\.jsonl.*changed or removed"):
        read_audit(tmp_path)


def test_a_removed_log_shows(tmp_path):
    filled(tmp_path).unlink()
    with pytest.raises(UserError, match=r"audit\.jsonl cannot be read"):
        Audit(tmp_path)


@pytest.mark.parametrize("text", ["x", "[]\n", "3\n", '{"previous": 3}\n', "\xff\n"])
def test_a_log_that_is_something_else_is_refused_by_its_name(tmp_path, text):
    filled(tmp_path).write_text(text)
    with pytest.raises(UserError, match=r"audit\.jsonl"):
        read_audit(tmp_path)


def test_a_line_that_a_crash_left_half_written_is_cut_off(tmp_path):
    path = filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    Audit(tmp_path)
    assert path.read_bytes() == whole


def test_a_line_that_a_crash_left_half_written_is_told_and_the_rest_is_read(tmp_path):
    path, told = filled(tmp_path), []
    path.write_bytes(path.read_bytes() + b'{"time": ')
    assert len(read_audit(tmp_path, told.append)) == 18
    assert len(told) == 1 and "half written" in told[0]


@pytest.mark.parametrize("changes", [{"direction": "up"}, {"bytes": None}, {"sha256": 3}, {"run": []}, {"shape": "2x3"}])
def test_an_uncounted_line_that_is_no_entry_is_refused(tmp_path, changes):
    path = filled(tmp_path)
    *_, last = path.read_bytes().splitlines()
    line = {**json.loads(last), "previous": sha256_of_bytes(last), **changes}
    path.write_bytes(path.read_bytes() + json.dumps(line).encode() + b"\n")
    with pytest.raises(UserError, match=r"audit\.jsonl: line 19 is no entry"):
        read_audit(tmp_path)


def test_lines_that_a_crash_left_uncounted_are_kept(tmp_path):
    filled(tmp_path, 2)
    head = (tmp_path / "audit.head").read_text()
    path = filled(tmp_path, 1)
    (tmp_path / "audit.head").write_text(head)
    assert len(read_audit(tmp_path)) == len(path.read_text().splitlines()) == 18
    filled(tmp_path, 1)
    assert len(read_audit(tmp_path)) == 24


def test_on_a_full_disk_the_log_stays_as_it_was(tmp_path):
    path = filled(tmp_path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    audit = Audit(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(OSError, match=r"whole|too large"):
            audit.record("r", 3, 1000, passed(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    audit.record("r", 3, 1000, passed(3))
    assert len(read_audit(tmp_path)) == 24


def test_the_table_has_a_row_for_each_tensor_that_left(tmp_path):
    filled(tmp_path)
    rows = table(read_audit(tmp_path))
    assert [row[:5] for row in rows] == [
        ["r", "train-ok", "(message)", "", "0-2"],
        ["r", "train-ok", "small.w", "2×3", "0-2"],
        ["r", "train-ok", "small.b", "2", "0-2"],
    ]
    assert rows[1][5:7] == ["72", "3"] and len(rows[0]) == len(COLUMNS)
    assert [row[1] for row in table(read_audit(tmp_path), "in")] == ["train"] * 3

"""The list of registered clients."""

import json

import pytest

from fedmrl.errors import UserError
from fedmrl.flower.registration import read_registered, register

KEYS = [character * 64 for character in "abc"]


def test_clients_are_numbered_in_the_order_of_registration(tmp_path):
    path = tmp_path / "clients.json"
    numbers = [register(path, name, key).number for name, key in zip(("north", "south", "east"), KEYS, strict=True)]
    assert numbers == [0, 1, 2]
    assert [client.name for client in read_registered(path)] == ["north", "south", "east"]


def test_registering_a_client_again_keeps_its_number(tmp_path):
    path = tmp_path / "clients.json"
    register(path, "north", KEYS[0])
    register(path, "south", KEYS[1])
    before = path.read_bytes()
    assert register(path, "north", KEYS[0]).number == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("north", KEYS[1], "another key"),
        ("south", KEYS[0], "registered, as north"),
        ("a/b", KEYS[1], "no name"),
        ("", KEYS[1], "no name"),
    ],
)
def test_a_name_and_a_key_belong_to_one_client(tmp_path, name, key, words):
    path = tmp_path / "clients.json"
    register(path, "north", KEYS[0])
    before = path.read_bytes()
    with pytest.raises(UserError, match=words):
        register(path, name, key)
    assert path.read_bytes() == before


@pytest.mark.parametrize("change", [{"number": 5}, {"key": KEYS[1]}, {"name": "south"}, {"key": "x"}])
def test_a_damaged_list_is_refused(tmp_path, change):
    path = tmp_path / "clients.json"
    register(path, "north", KEYS[0])
    register(path, "south", KEYS[1])
    plain = json.loads(path.read_text())
    plain[0] |= change
    path.write_text(json.dumps(plain))
    with pytest.raises(UserError, match=r"clients\.json"):
        read_registered(path)


@pytest.mark.parametrize("text", ["x", "3"])
def test_what_is_no_list_is_to_be_restored_from_a_copy(tmp_path, text):
    (tmp_path / "clients.json").write_text(text)
    with pytest.raises(UserError, match=r"clients\.json is damaged .*; restore it from a copy$"):
        read_registered(tmp_path / "clients.json")

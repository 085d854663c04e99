"""Registries: who may add what under which name, where it came from, and what importing a file can run into."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tiny import tiny_recipe

import fedmrl
from fedmrl import UserError, load_recipe, registry
from fedmrl.config import settings_of
from fedmrl.methods import METHODS, Method
from fedmrl.registry import Registry, import_all

METHOD = """
import fedmrl

@fedmrl.register
class Mine(fedmrl.Standalone):
    name = "mine"
    title = "Mine"
"""


@pytest.fixture
def file(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_what_a_file_registers_can_be_named_and_says_where_it_came_from(file):
    path = file(METHOD)
    import_all([path])
    assert METHODS["mine"].title == "Mine" and METHODS.origin("mine") == path
    assert METHODS.origin("fedmrl") == ""


def test_a_file_is_imported_once_until_it_changes(file):
    path, said = file(METHOD), []
    for _ in range(2):
        import_all([path], said.append)
    first = METHODS["mine"]
    file(METHOD.replace('title = "Mine"', 'title = "Other"'))
    import_all([path], said.append)
    assert said == [f"importing {path}"] * 2 and METHODS["mine"] is not first and METHODS["mine"].title == "Other"


def test_two_files_of_one_name_do_not_meet(file, tmp_path):
    (tmp_path / "other").mkdir()
    import_all([file(METHOD), file(METHOD.replace('"mine"', '"another"'), "other/mine.py")])
    assert METHODS["mine"] is not METHODS["another"]


def test_nobody_takes_a_name_that_is_taken(file):
    with pytest.raises(UserError, match="fedmrl itself has already registered a method 'fedmrl'; choose another name"):
        import_all([file(METHOD.replace('"mine"', '"fedmrl"'))])
    import_all([first := file(METHOD)])
    with pytest.raises(UserError, match=f"{first} has already registered a method 'mine'"):
        import_all([file(METHOD, "other.py")])


@pytest.mark.parametrize("name", ["", "My Method", "a/b", "a_b", "-a", "a--b", "../x"])
def test_a_name_must_fit_into_commands_and_folders(file, name):
    with pytest.raises(UserError, match="a method cannot be named"):
        import_all([file(METHOD.replace('"mine"', repr(name)))])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1/0", "ZeroDivisionError: division by zero, line 1"),
        ("\n\ndef f(:", "SyntaxError.*line 3"),
        ("import nosuchmodule", r"there is no module nosuchmodule\); install it"),
        ("import sys\nsys.exit(3)", "SystemExit: 3, line 2"),
        ("import fedmrl\nfedmrl.register(3)", "3 cannot be registered; it must be a class derived from one of fedmrl.Method"),
        ("import fedmrl\n@fedmrl.register\nclass A(fedmrl.Method): pass", "A cannot be registered: it does not define loss"),
        ("import fedmrl\nclass A(fedmrl.Standalone):\n    colour = 'red'", "A.colour is 'red'; write it as in '#cf4a00'"),
    ],
)
def test_what_fails_in_a_users_file_is_a_sentence_with_its_line(file, text, says):
    path = file(text)
    with pytest.raises(UserError, match=says):
        import_all([path])
    assert not [name for name in sys.modules if name.startswith(f"imported:{Path(path).parent}")]


def test_a_file_or_module_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no.py does not exist; imports must name Python files or modules"):
        import_all([str(tmp_path / "no.py")])
    with pytest.raises(UserError, match="nosuchmodule cannot be imported"):
        import_all(["nosuchmodule"])


def test_an_installed_package_adds_a_method_by_an_entry_point(file, tmp_path, monkeypatch):
    file(METHOD, "somebodys_package.py")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("mine", "somebodys_package:Mine", "fedmrl.methods"),
        EntryPoint("broken", "somebodys_package:Nothing", "fedmrl.methods"),
    ]

    def announced(group, name=None):
        return [point for point in points if point.group == group and name in (None, point.name)]

    monkeypatch.setattr(registry, "entry_points", announced)
    assert "mine" not in dict(METHODS._entries) and "mine" in METHODS.names()
    assert load_recipe("quickstart", {"method.name": "mine"}).method.title == "Mine"
    assert METHODS.origin("mine") == "somebodys_package"
    with pytest.raises(UserError, match="the method 'broken' of somebodys_package:Nothing cannot be loaded"):
        load_recipe("quickstart", {"method.name": "broken"})


def test_a_method_that_is_derived_from_another_is_not_that_other():
    class FedProx(fedmrl.FedMRL):
        """Stays near."""

    assert (FedProx.name, FedProx.title, FedProx.summary) == ("fedprox", "FedProx", "Stays near.")
    assert issubclass(FedProx, Method)


def test_a_registry_is_a_mapping():
    things: Registry[int] = Registry("thing", "fedmrl.things")
    things.add("one", 1, "fedmrl.x")
    assert dict(things) == {"one": 1} and len(things) == 1 and "two" not in things and things.get("two") is None


def test_whoever_reads_a_folder_loads_no_package(monkeypatch, tmp_path):
    def announced(group, name=None):
        assert name is None, "a package is looked for, to be loaded"
        return []

    fedmrl.run(tiny_recipe("standalone"), out=tmp_path / "one")
    config = tmp_path / "one" / "config.toml"
    monkeypatch.setattr(registry, "entry_points", announced)
    assert settings_of(config.read_text().replace('"standalone"', '"evil"'))["method.name"] == "evil"


def test_a_package_that_registers_nothing_or_ends_the_program_is_named(monkeypatch, tmp_path):
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(0)")
    (tmp_path / "nothing.py").write_text("Thing = 3")
    monkeypatch.syspath_prepend(tmp_path)
    for module, says in (("ends", "SystemExit: 0"), ("nothing:Thing", "announces a method 'mine' and registers none")):
        point = EntryPoint("mine", module, "fedmrl.methods")
        monkeypatch.setattr(registry, "entry_points", lambda group, name=None, point=point: [point] if name == "mine" else [])
        with pytest.raises(UserError, match=says):
            load_recipe("quickstart", {"method.name": "mine"})

"""The examples: each adds one thing outside the library; together they are run, stopped, resumed, reloaded and shown."""

import json
import shutil
from pathlib import Path

import pytest

from fedmrl import registry
from fedmrl.aggregation import RULES
from fedmrl.config import load_recipe
from fedmrl.data import SOURCES
from fedmrl.federation.folder import RunFolder
from fedmrl.methods import METHODS
from fedmrl.models import MODELS
from fedmrl.results import RunResult

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = ["--set", "rounds=3", "--set", "evaluation.every=1"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A copy of the examples, which no other test has imported."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.setattr(registry, "_imported", {})
    return tmp_path / "examples" / "own.toml"


def forget(monkeypatch):
    """As in a new process: nothing is imported or registered that is not fedmrl's."""
    monkeypatch.setattr(registry, "_imported", {})
    for one in (METHODS, SOURCES, MODELS, RULES):
        one._entries = {name: entry for name, entry in one._entries.items() if not entry.origin}


def test_method_data_model_and_rule_of_ones_own_run_from_the_command_line(fedmrl, own):
    code, out, err = fedmrl("run", own, *SHORT, "--out", "one")
    assert code == 0 and "FedProx on spirals" in out and "importing" in err
    result = RunResult.read("one")
    assert (result.title, result.colour, result.method) == ("FedProx", "#8a5a00", "fedprox")
    assert {client.model for client in result.clients} == {"resmlp (width = 24)"}
    assert result.class_names == ["arm 0", "arm 1", "arm 2"]
    said = json.loads(Path("one/origins.json").read_text())
    assert {key: Path(origin).name for key, origin in said.items()} == {
        "data.name": "spirals.py", "method.name": "fedprox.py", "aggregation.rule": "geometric_median.py",
        "models resmlp": "resmlp.py",
    }  # fmt: skip


def test_a_stopped_run_goes_on_in_a_new_process_and_ends_as_if_it_had_not_been_stopped(fedmrl, own, monkeypatch):
    fedmrl("run", own, *SHORT, "--out", "whole")
    real, appended = RunFolder.append, []

    def stops(self, snapshot, states):
        real(self, snapshot, states)
        appended.append(snapshot)
        if len(appended) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "append", stops)
    assert fedmrl("run", own, *SHORT, "--out", "cut")[0] == 130
    monkeypatch.setattr(RunFolder, "append", real)
    forget(monkeypatch)
    assert fedmrl("run", "cut", "--resume")[0] == 0
    assert RunResult.read("cut").states_sha256 == RunResult.read("whole").states_sha256


def test_a_folder_alone_gives_the_same_run_again(fedmrl, own, monkeypatch):
    fedmrl("run", own, *SHORT, "--out", "one")
    forget(monkeypatch)
    assert fedmrl("run", "one", "--out", "two")[0] == 0
    assert RunResult.read("one").states_sha256 == RunResult.read("two").states_sha256


def test_a_report_shows_them_and_executes_nothing_that_a_folder_names(fedmrl, own, monkeypatch):
    fedmrl("compare", own, "--methods", "fedprox,standalone", *SHORT, "--set", "aggregation.rule=mean", "--out", "both")
    forget(monkeypatch)
    for file in own.parent.glob("*.py"):
        file.write_text("raise SystemExit('this was executed')")
    code, _, _ = fedmrl("report", "both")
    page = Path("both/report.html").read_text(encoding="utf-8")
    assert code == 0 and '"name":"FedProx"' in page and "light-dark(#8a5a00, " in page
    assert "#8a5a00" in Path("both/accuracy.svg").read_text(), "the figure and the page have one colour"
    assert "FedProx" in Path("both/table.md").read_text()


def test_a_file_that_has_changed_or_gone_is_named_when_the_run_is_to_go_on(fedmrl, own, monkeypatch):
    fedmrl("run", own, *SHORT, "--out", "one")
    (Path("one") / "summary.json").unlink()
    file = own.parent / "fedprox.py"
    text = file.read_text()
    file.write_text(text + "\n# changed\n")
    forget(monkeypatch)
    code, _, err = fedmrl("run", "one", "--resume")
    assert code == 2 and "the file that imports[0] names has changed since one was started" in err
    file.unlink()
    forget(monkeypatch)
    code, _, err = fedmrl("run", "one", "--resume")
    assert code == 2 and f"{file} does not exist; imports must name Python files or modules" in err


def test_what_is_registered_no_more_is_named_with_where_it_came_from(fedmrl, own, monkeypatch):
    fedmrl("run", "quickstart", *SHORT, "--import", own.parent / "fedprox.py", *homogeneous(), "--out", "one")
    config = Path("one/config.toml")
    config.write_text(config.read_text().replace(f'imports = [\n    "{own.parent / "fedprox.py"}",\n]\n', ""))
    forget(monkeypatch)
    code, _, err = fedmrl("run", "one", "--out", "two")
    assert code == 2 and "method.name is 'fedprox', which is not a known method" in err
    assert f"method.name came from {own.parent / 'fedprox.py'}" in err


def homogeneous():
    small = "[{hidden = [8]}]"
    return [
        "--set",
        f"models.local={small}",
        "--set",
        "clients=4",
        "--set",
        "participation=0.5",
        "--set",
        "method.name=fedprox",
    ]


def test_a_file_named_on_the_command_line_is_remembered_in_the_recipe(fedmrl, own, monkeypatch):
    assert fedmrl("run", "quickstart", *SHORT, "--import", own.parent / "fedprox.py", *homogeneous(), "--out", "one")[0] == 0
    forget(monkeypatch)
    assert load_recipe("one").imports == [str(own.parent / "fedprox.py")]


def test_lists_show_what_is_imported(fedmrl, own):
    code, out, _ = fedmrl("methods", "--import", own.parent / "fedprox.py")
    assert code == 0 and "fedprox" in out and "method.mu = 0.01" in out
    code, out, _ = fedmrl("models", "--import", own.parent / "resmlp.py")
    assert code == 0 and "resmlp" in out


@pytest.mark.parametrize("engine", ["reference", "batched"])
def test_both_engines_run_them(fedmrl, own, engine):
    code, _, _ = fedmrl("run", own, *SHORT, "--set", "training.precision=fp64", "--engine", engine, "--out", engine)
    assert code == 0
    fedmrl("run", own, *SHORT, "--set", "training.precision=fp64", "--engine", "reference", "--out", "other")
    one, other = RunResult.read(engine), RunResult.read("other")
    assert one.headline() == pytest.approx(other.headline(), abs=1e-9)
    assert [record.loss for record in one.records] == pytest.approx([record.loss for record in other.records], rel=1e-9)

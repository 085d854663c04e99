"""predict, export and modes: what they print and write, and a sentence for what is wrong."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import fedmrl as package

SETTINGS = {"models.local": [{"hidden": [6]}], "partition.classes_per_client": 2, "clients": 2, "rounds": 1, "method.d1": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run on a table."""
    folder = tmp_path_factory.mktemp("home")
    rng = np.random.default_rng(0)
    table = [{"age": age, "site": site, "state": state} for age, site, state in zip(
        rng.integers(20, 90, 80).tolist(), rng.choice(["left", "right"], 80), rng.choice(["ill", "well"], 80), strict=True
    )]  # fmt: skip
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["age", "site", "state"])
        writer.writeheader()
        writer.writerows(table)
    package.run("quickstart", data=folder / "table.csv", label="state", settings=SETTINGS, out=folder / "run")
    return folder


def test_predict_writes_a_csv_of_classes_and_probabilities(fedmrl, run):
    code, out, err = fedmrl("predict", run / "run", "--client", 1, run / "table.csv")
    assert code == 0, err
    rows = list(csv.DictReader(io.StringIO(out)))
    expected = package.RunResult.read(run / "run").client(1).scores(run / "table.csv")
    assert list(rows[0]) == ["class", "p(ill)", "p(well)"] and len(rows) == 80
    assert [float(row["p(ill)"]) for row in rows] == pytest.approx(expected[:, 0], rel=1e-5)
    assert all(row["class"] == max(("ill", "well"), key=lambda name: float(row[f"p({name})"])) for row in rows)


def test_predict_writes_to_a_file_if_asked(fedmrl, run):
    code, out, _ = fedmrl("predict", run / "run", "--client", 0, run / "table.csv", "--mode", "single-small", "--out", "p.csv")
    assert code == 0 and out == "Predictions: p.csv (80 samples)\n"
    assert Path("p.csv").read_text().count("\n") == 81


@pytest.mark.parametrize("suffix", ["onnx", "pt2", "safetensors"])
def test_export_writes_the_file_and_says_what_it_holds(fedmrl, run, suffix):
    code, out, err = fedmrl("export", run / "run", "--client", 1, "--mode", "mix-small", "--to", f"m.{suffix}")
    size = Path(f"m.{suffix}").stat().st_size
    assert (code, out) == (0, f"Model: m.{suffix} ({size:,} bytes; client 1, mode mix-small)\n"), err


def test_modes_shows_what_each_costs(fedmrl, run):
    code, out, _ = fedmrl("modes", run / "run", "--client", 1, "--json")
    rows = {row["mode"]: row for row in json.loads(out)}
    assert code == 0 and list(rows) == ["mix-large", "mix-small", "single-small", "single-large"]
    # A table of one number and two words: 3 features; hidden 6 in local and d1 = 3 in small; 2 classes.
    small, local, projector = 3 * 3 + 3, 3 * 6 + 6, 9 * 6 + 6
    assert rows["single-large"]["parameters"] == local + 6 * 2 + 2
    assert rows["single-small"]["parameters"] == small + 3 * 2 + 2
    assert rows["mix-large"]["parameters"] == small + local + projector + 6 * 2 + 2
    assert rows["mix-small"]["parameters"] == small + local + projector + 3 * 2 + 2
    assert rows["mix-large"]["bytes"] == 4 * rows["mix-large"]["parameters"]
    assert rows["single-large"]["flops"] == 2 * (3 * 6 + 6 * 2) and rows["single-large"]["milliseconds"] > 0
    shown = fedmrl("modes", run / "run")[1]
    assert "client 0" in shown and "mix-small" in shown and " ms" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "{}/nowhere", "--client", "0", "{}/table.csv"], "nowhere holds no finished run"),
        (["predict", "{}/run", "--client", "7", "{}/table.csv"], "there is no client 7 in the results"),
        (["predict", "{}/run", "--client", "0", "{}/nowhere.csv"], "nowhere.csv"),
        (["predict", "{}/run", "--client", "0", "{}/run/config.toml"], "config.toml"),
        (["predict", "{}/run", "--client", "0", "{}/table.csv", "--mode", "big"], "mode is 'big'; this model has mix-large"),
        (["predict", "{}/run", "--client", "0", "{}/table.csv", "--out", "no/p.csv"], "--out: no/p.csv cannot be written"),
        (["export", "{}/run", "--client", "0", "--to", "m.pkl"], "m.pkl cannot be written: end its name in .onnx, .pt2"),
        (["export", "{}/run", "--client", "0", "--to", "no/m.pt2"], "no/m.pt2 cannot be written; name a file"),
        (["export", "{}", "--client", "0", "--to", "m.pt2"], "holds no finished run"),
        (["modes", "{}/run", "--client", "-1"], "there is no client -1"),
    ],
)
def test_a_mistake_is_a_sentence_and_writes_nothing(fedmrl, run, arguments, says):
    code, out, err = fedmrl(*(argument.format(run) for argument in arguments))
    assert code == 2 and out == "" and err.startswith("fedmrl: ") and says in err and err.count("\n") == 1
    assert list(Path().iterdir()) == []

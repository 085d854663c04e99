"""The command line: what it prints, the sentence and the exit code of every mistake, and what it leaves behind."""

import copy
import datetime
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from rich.console import Console
from tiny import CNNS, data_file

from fedmrl import progress
from fedmrl.cli import listing, options, paper, terminal
from fedmrl.errors import InterruptedRun


def sets(*settings):
    return [word for setting in settings for word in ("--set", setting)]


MARKER_PATHS = json.dumps(CNNS).replace(":", " =")
PLAIN = sets(
    "data.name=arrays",
    f"data.file={data_file()}",
    "clients=4",
    "participation=0.5",
    "partition.classes_per_client=2",
    f"models.local={MARKER_PATHS}",
    "rounds=2",
    "training.epochs=1",
)
TINY = [*PLAIN, *sets("method.d1=3")]


def left_behind(folder="."):
    return sorted(str(path) for path in Path(folder).rglob("*"))


def test_run_writes_a_whole_folder_and_says_what_came_out(fedmrl):
    code, out, _ = fedmrl("run", "quickstart", *TINY)
    assert code == 0
    folder = Path("runs/quickstart-fedmrl-1")
    expected = ["checkpoint", "clients.csv", "config.toml", "inputs.json", "rounds.jsonl", "split.json", "summary.json"]
    assert sorted(p.name for p in folder.iterdir()) == expected
    summary = json.loads((folder / "summary.json").read_text())
    final = summary["accuracy"]["all"]["aggregated"]["mix-large"]["last"]
    assert f"fair: {100 * final:.1f} %, mean over all clients" in out and str(folder) in out
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 2
    assert len((folder / "clients.csv").read_text().splitlines()) == 5
    assert not list(folder.rglob("*.pkl")) and not list(folder.rglob("*.pt"))


def test_report_writes_a_page_of_what_run_and_compare_hint_at(fedmrl):
    code, out, _ = fedmrl("run", "quickstart", *TINY, "--seeds", "0,1")
    assert code == 0 and "fedmrl report runs/quickstart-fedmrl-1" in out
    code, out, _ = fedmrl("report", "runs/quickstart-fedmrl-1")
    assert code == 0 and "runs/quickstart-fedmrl-1/report.html" in out
    assert "FedMRL reached" in Path("runs/quickstart-fedmrl-1/report.html").read_text(encoding="utf-8")


def test_a_report_that_cannot_be_made_is_a_sentence_and_no_page(fedmrl):
    code, _, err = fedmrl("report", "nowhere", "--out", "page.html")
    assert code == 2 and err.startswith("fedmrl: nowhere does not exist;") and left_behind() == []


def test_each_run_without_out_gets_a_folder_of_its_own(fedmrl):
    for _ in range(2):
        assert fedmrl("run", "quickstart", *TINY)[0] == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["quickstart-fedmrl-1", "quickstart-fedmrl-2"]


def test_runs_that_start_together_get_folders_of_their_own(tmp_path):
    arguments = ["run", "quickstart", *PLAIN, *sets("method.name=standalone")]
    processes = [start(tmp_path, *arguments) for _ in range(3)]
    ends = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ends
    names = [f"runs/quickstart-standalone-{number}/summary.json" for number in (1, 2, 3)]
    assert all((tmp_path / name).exists() for name in names)


def test_a_folder_that_another_run_makes_meanwhile_is_left_to_it(fedmrl, monkeypatch):
    real, made = Path.mkdir, []

    def mkdir(self, *words, **named):
        if self.name == "quickstart-fedmrl-1" and not made:
            made.append(self)
            real(self)  # by the other, between the look and the leap
        real(self, *words, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    code, out, err = fedmrl("run", "quickstart", *TINY)
    assert code == 0, err
    assert "runs/quickstart-fedmrl-2" in out and made and not list(made[0].iterdir())


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_run_that_is_refused_leaves_no_new_folder(fedmrl, command):
    refused = [command, "quickstart", *PLAIN, *sets("participation=no.json")]
    assert fedmrl(*refused)[0] == 2 and left_behind() == []
    Path("runs").mkdir()
    assert fedmrl(*refused)[0] == 2 and left_behind() == ["runs"], "what was there stays"


def test_runs_that_is_a_file_is_told(fedmrl):
    Path("runs").write_text("")
    code, _, err = fedmrl("run", "quickstart", *TINY)
    assert (code, err) == (2, "fedmrl: runs is a file; remove it, or choose another output folder\n")


def test_a_runs_own_config_gives_the_same_numbers_again(fedmrl):
    fedmrl("run", "quickstart", *TINY, "--out", "one")
    fedmrl("run", "one/config.toml", "--out", "two")
    fedmrl("run", "one", "--set", "partition.kind=given", "--set", "partition.file=one/split.json", "--out", "three")
    first, *others = (json.loads(Path(f, "summary.json").read_text()) for f in ("one", "two", "three"))
    times = ("seconds", "wall_seconds", "cpu_seconds", "files", "sha256")
    for other in others:
        assert {k: v for k, v in other.items() if k not in times} == {k: v for k, v in first.items() if k not in times}


def test_json_is_the_only_thing_on_standard_output(fedmrl):
    code, out, err = fedmrl("run", "quickstart", *TINY, "--json")
    assert code == 0 and json.loads(out)["status"] == "finished"
    assert "round 2/2" in err and "s left" in err


def test_compare_gives_one_table_one_figure_and_the_same_split_to_all(fedmrl):
    code, out, err = fedmrl("compare", "quickstart", *TINY, "--methods", "fedmrl,standalone,fedproto", "--out", "c")
    assert code == 0, err
    assert all(title in out for title in ("FedMRL", "Standalone", "FedProto", "accuracy.png"))
    table = Path("c/table.md").read_text()
    assert (
        table.startswith("| method | fair | own | paper | worst client | sent and received |")
        and len([line for line in table.splitlines() if line[:1] == "|"]) == 5
    )
    assert "- own: all clients after the last round, each with the copy of the shared part" in table
    assert Path("c/accuracy.png").read_bytes().startswith(b"\x89PNG") and "<svg" in Path("c/accuracy.svg").read_text()
    assert Path("c/accuracy.pdf").read_bytes().startswith(b"%PDF")
    latex = Path("c/table.tex").read_text()
    assert "\\toprule" in latex and "FedProto & " in latex and latex.count("\\\\\n") == 4
    assert len({Path(f"c/{m}/split.json").read_text() for m in ("fedmrl", "standalone", "fedproto")}) == 1
    assert all(Path(f"c/{m}/checkpoint/state.json").exists() for m in ("fedmrl", "standalone", "fedproto")), "for predict"


def test_a_comparison_that_is_not_to_keep_models_has_none_and_says_so(fedmrl):
    few = ["--methods", "fedmrl", "--no-keep-models", "--out", "c"]
    assert fedmrl("compare", "quickstart", *TINY, *few)[0] == 0
    assert not list(Path("c").rglob("*.safetensors"))
    code, _, err = fedmrl("export", "c/fedmrl", "--client", "0", "--to", "m.pt2")
    assert code == 2 and err.startswith("fedmrl: c/fedmrl has no final models: they were not to be kept")


def test_compare_reads_the_data_once(fedmrl, monkeypatch):
    from fedmrl.data import sources

    real, reads = sources.load, []
    monkeypatch.setattr(sources, "load", lambda table: reads.append(table) or real(table))
    code, _, _ = fedmrl("compare", "quickstart", *PLAIN, "--methods", "standalone,fd", "--seeds", "0,1", "--out", "c")
    assert code == 0 and len(reads) == 1


def test_compare_over_seeds_tells_mean_and_spread(fedmrl):
    code, out, err = fedmrl("compare", "quickstart", *PLAIN, "--methods", "fd,fml", "--seeds", "0,1", "--json", "--out", "c")
    assert code == 0, err
    assert [run["seed"] for run in json.loads(out)["methods"]["fd"]] == [0, 1]
    assert "±" in Path("c/table.md").read_text()


def test_compare_where_all_diverge_exits_3_and_names_no_figure(fedmrl):
    code, out, err = fedmrl(
        "compare", "quickstart", *PLAIN, *sets("training.lr=1e30"), "--methods", "standalone,fd", "--out", "c"
    )
    assert code == 3, err
    assert "Figure" not in out
    assert err.count("became NaN or infinite") == 2


def test_compare_goes_on_when_one_method_diverges_and_prints_a_dash(fedmrl):
    diverging = sets("method.prototype_weight=1e308", "rounds=3", "participation=1.0")
    code, out, err = fedmrl("compare", "quickstart", *PLAIN, *diverging, "--methods", "fedproto,standalone", "--out", "c")
    assert code == 0
    assert "–" in next(line for line in out.splitlines() if "FedProto" in line)
    assert "%" in next(line for line in out.splitlines() if "Standalone" in line)
    summary = json.loads(Path("c/fedproto/summary.json").read_text())
    assert summary["status"] == "diverged" and set(summary["diverged"]) == {"client", "round", "reason"}
    assert "fedproto, seed 0: client" in err


def test_a_diverging_run_exits_3_and_says_who_and_when(fedmrl):
    code, _, err = fedmrl("run", "quickstart", *TINY, "--set", "training.lr=1e30", "--out", "r")
    assert code == 3
    assert err.splitlines()[-1].startswith("fedmrl: client ") and "became NaN or infinite in round" in err
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["status"] == "diverged" and summary["diverged"]["round"] >= 1


def test_an_interrupted_comparison_goes_on(fedmrl, monkeypatch):
    from fedmrl.engines import ReferenceEngine

    real, calls = ReferenceEngine._train_one, []

    def stop(self, round_, turn):
        calls.append(turn)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(self, round_, turn)

    command = ["compare", "quickstart", *TINY, "--methods", "fedmrl,standalone,fd", "--out", "c"]
    monkeypatch.setattr(ReferenceEngine, "_train_one", stop)
    code, _, err = fedmrl(*command)
    assert code == 130 and "stopped before the first round ended" in err and "--out c --resume" in err
    assert fedmrl("report", "c")[0] == 0
    page = Path("c/report.html").read_text()
    assert "Left out: c/standalone is not finished" in page
    assert "Left out: fd has not begun; repeat the command of the comparison with --out c --resume." in page
    monkeypatch.setattr(ReferenceEngine, "_train_one", real)
    code, out, _ = fedmrl(*command, "--resume")
    assert code == 0 and "Standalone" in out and "Page: c/report.html" in out and "To see it as a page" not in out
    assert "Left out" not in Path("c/report.html").read_text()


def test_several_seeds_are_one_run_with_a_folder_for_each(fedmrl):
    code, out, err = fedmrl("run", "quickstart", *TINY, "--seeds", "0,1", "--engine", "batched", "--out", "both")
    assert code == 0 and "mean" in out and "±" in out and "both/seed-*/" in out
    assert "clients' states are kept in memory" in err
    fedmrl("run", "quickstart", *TINY, "--set", "seed=1", "--engine", "batched", "--out", "one")
    alone, among = (json.loads(Path(f, "summary.json").read_text()) for f in ("one", "both/seed-1"))
    assert alone["accuracy"] == among["accuracy"]
    code, out, _ = fedmrl("run", "quickstart", *TINY, "--seeds", "0,1", "--out", "both", "--resume", "--json")
    assert code == 0 and [run["seed"] for run in json.loads(out)["runs"]] == [0, 1]


def test_several_seeds_that_all_diverge_exit_3_and_name_each(fedmrl):
    code, _, err = fedmrl("run", "quickstart", *TINY, "--set", "training.lr=1e30", "--seeds", "0,1", "--out", "both")
    assert code == 3 and "seed 0: client" in err and "seed 1: client" in err


def test_bench_prints_a_row_for_each_way_and_writes_them(fedmrl):
    code, out, err = fedmrl("bench", "quickstart", *TINY, "--repeats", "1", "--fused", "2", "--out", "bench.json")
    assert code == 0 and "reference fp32" in out and "eager fp32 ×2" in out and "samples/s" in err
    written = json.loads(Path("bench.json").read_text())
    assert [row["way"] for row in written["rows"]] == ["reference", "eager", "eager"]
    assert written["device"] and "shown" not in written["rows"][0]


def test_the_table_of_bench_fits_into_80_columns():
    from fedmrl.bench import BENCH_COLUMNS

    table = terminal.table("paper/cifar10-n100, fedmrl: 10 clients a round", *BENCH_COLUMNS)
    table.add_row("compiled bf16 ×3", "1,234,567", "123.4 ms", "123.4 ms", "123.4 ms", "1e-03")
    assert Console(width=80).measure(table).maximum <= 80


MISTAKES = [
    (["run", "quickstart", "--store", "cloud"], "--store: there is no 'cloud'; choose auto, device, host or disk"),
    (["run", "quickstart", "--engine", "fast"], "--engine: there is no 'fast'; choose auto, reference, batched or ray"),
    (["run", "quickstart", "--seeds", "0,0"], "seeds must be different"),
    (["run", "quickstart", "--seeds", "0,1", "--resume"], "--resume needs the folder that holds the runs"),
    (["run", "quickstart", "--seeds", "0,1", "--resume", "--out", "none"], "none has no runs of these seeds to resume"),
    (["bench", "quickstart", "--ways", "compiled", "--device", "cpu"], "captured and compiled need a GPU"),
    (["bench", "quickstart", "--precisions", "fp8"], "precisions is fp8; choose from fp32, tf32, bf16, fp64"),
    (["bench", "quickstart", "--out", "nowhere/bench.json"], "nowhere/bench.json cannot be written"),
    (["run", "broken.toml"], "broken.toml is not TOML"),
    (["run", "nothing.toml"], "nothing.toml cannot be read"),
    (["run", "quikstart"], "did you mean 'quickstart'?"),
    (["run", "quickstart", "--set", "training.batchsize=3"], "no key training.batchsize; did you mean training.batch_size?"),
    (["run", "quickstart", "--set", "participation=0"], "participation is 0; it must be above 0"),
    (["run", "quickstart", "--set", "method.d1=600"], "method.d1 is 600, more than client 0's representation (500, CNN-1)"),
    (["run", "quickstart", "--set", "partition.kind=dirichlet", "--set", "partition.alpha=0"], "partition.alpha is 0"),
    (["run", "quickstart", "--set", "partition.classes_per_client=11"], "and digits has 10 classes; choose 1 to 10"),
    (["run", "quickstart", *sets("clients=3", "partition.classes_per_client=2")], "2 × 3 = 6, less than the 10 classes"),
    (["run", "quickstart", "--set", "training.batch_size=0"], "training.batch_size is 0; it must be at least 1"),
    (["run", "quickstart", "--set", "clients=2000"], "clients is 2000, more than the 1797 samples of digits"),
    (
        ["run", "quickstart", *sets("partition.kind=dirichlet", "partition.alpha=0.01", "partition.tries=5")],
        "gave some client fewer than 10 samples in each of 5 tries",
    ),
    (["run", "paper/cifar10-n10", "--set", "data.dir=."], "data_batch_1.bin is missing and 5 more"),
    (["run", "corrupt"], "is not the official file (its MD5 differs)"),
    (["run", "quickstart", "--set", "data.name=arrays", "--set", "data.file=bad.npz"], "cannot be read as an .npz file"),
    (["run", "quickstart", "--out", "used"], "used already holds a run; name another folder as out, or resume the run"),
    (["run", "quickstart", "--out", "full"], "full is not empty; name a new folder as out, or delete this one"),
    (["run", "quickstart", "--out", "broken.toml"], "broken.toml is a file; name a folder as out"),
    (["run", "quickstart", "--out", "used", "--resume"], "used was started with another recipe: "),
    (["run", "quickstart", "--out", "full", "--resume"], "full holds no run to resume"),
    (["run", "quickstart", "--resume"], "--resume needs the folder of the run"),
    (["run", "quickstart", "--device", "gpu"], "--device: there is no 'gpu'"),
    (["run", "quickstart", "--engine", "fast"], "--engine: there is no 'fast'"),
    (["run", "vectors"], "takes images of at least 16×16 pixels"),
    (["run", "vectors", *sets("models.local=[{hidden=[8, 6]}]", "method.d1=7")], "client 0's representation (6, MLP(8-6))"),
    (["run", "vectors", "--set", "models.small={hidden = [0]}"], "models.small.hidden[0] is 0; it must be at least 1"),
    (["run", "vectors", "--set", "data.mean=[1]"], "data.mean has 1 values; arrays has 5 features, so give 5"),
    (["run", "unlike", "--set", "method.name=lg-fedavg"], "client 0 (CNN(2-2-8-6)) has one of shape [10, 6] where client 1 "),
    (["run", "unlike", "--set", "method.name=fedproto"], "client 0 (CNN(2-2-8-6)) has 6 dimensions where client 1 "),
    (["compare", "unlike", "--methods", "standalone,lg-fedavg"], "lg-fedavg averages headers"),
    (["compare", "quickstart", "--methods", "fedmrl,fedavg"], "--methods is 'fedavg', which is not a known method; did you"),
    (["compare", "quickstart", "--methods", "fd,fd"], "name different methods"),
    (["compare", "quickstart", "--seeds", "a"], "give whole numbers separated by commas"),
    (["compare", "quickstart", "--seeds", "1,1"], "seeds must be different"),
    (["compare", "quickstart", "--methods", "fml,fd", "--set", "method.d1=3"], "none of fml, fd has a field 'd1'"),
    (["compare", "quickstart", "--resume"], "name it with --out"),
    (["compare", "quickstart", "--out", "full", "--resume"], "full holds no such comparison to resume"),
    (["compare", "quickstart", "--methods", "fedmrl,fd", "--set", "evaluation.mode=mix-small"], "which fd with these settings"),
    (["compare", "quickstart", "--seeds", "0,1", "--set", "clients=2000"], "more than the 1797 samples"),
    (["run", "quickstart", "--out", "/proc/run"], "/proc/run cannot be written"),
    (["run", "quickstart", "--out", "broken.toml/x"], "broken.toml/x cannot be written"),
    (["run", "quickstart", "--out", "x" * 300], "File name too long"),
    (["run", "x" * 300], "File name too long"),
    (["run", "quickstart", "--out", "torn", "--resume"], "torn/config.toml is damaged"),
    (["models", "--shape", "3x99999999x99999999"], "at most 4096"),
    (["partition", "quickstart", "--out", "who.txt"], "name a .png, .svg or .pdf file"),
    (["partition", "quickstart", "--out", "no/who.png"], "there is no folder no"),
    (["models", "--shape", "3x32"], "give channels x height x width"),
    (["models", "--shape", "0x32x32"], "channels must be at least 1"),
    (["models", "--shape", "3x8x8"], "at least 16×16 pixels"),
    (["data", "digits"], "it comes with scikit-learn"),
    (["data", "cifar1"], "did you mean 'cifar10'?"),
    (["data", "cifar100", "--source", "npm"], "has cifar10 only"),
]  # fmt: skip


@pytest.fixture
def mishaps(tmp_path):
    """The files and folders that the mistakes need."""
    (tmp_path / "broken.toml").write_text("rounds = = 1")
    (tmp_path / "bad.npz").write_text("no")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "config.toml").write_text("rounds = 1\n")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.toml").write_text("rounds = ")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    for number in range(1, 6):
        path = tmp_path / "cifar" / "cifar-10-batches-bin" / f"data_batch_{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"corrupt")
    (tmp_path / "cifar" / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"corrupt")
    (tmp_path / "corrupt.toml").write_text('[data]\nname = "cifar10"\ndir = "cifar"\n')
    np.savez(tmp_path / "vectors.npz", x=np.random.default_rng(0).normal(size=(40, 5)), y=np.arange(40) % 2)
    (tmp_path / "vectors.toml").write_text('clients = 2\n[data]\nname = "arrays"\nfile = "vectors.npz"\n')
    (tmp_path / "unlike.toml").write_text(
        "[models]\nlocal = [{conv1 = 2, conv2 = 2, fc1 = 8, fc2 = 6}, {conv1 = 2, conv2 = 2, fc1 = 8, fc2 = 5}]\n"
        '[method]\nname = "standalone"\n'
    )


@pytest.mark.parametrize(("command", "sentence"), MISTAKES, ids=[" ".join(c)[:60] for c, _ in MISTAKES])
def test_a_mistake_is_one_sentence_and_exit_code_2_and_leaves_nothing_behind(fedmrl, mishaps, command, sentence):
    command = [f"{word}.toml" if word in ("corrupt", "vectors", "unlike") else word for word in command]
    before = left_behind()
    code, out, err = fedmrl(*command)
    assert (code, out) == (2, "")
    assert sentence in err and err.startswith("fedmrl: ") and err.count("\n") == 1, err
    assert left_behind() == before


def test_partition_prints_a_table_and_a_picture(fedmrl):
    code, out, _ = fedmrl("partition", "quickstart", "--out", "who.png")
    assert code == 0 and "CNN-5" in out and Path("who.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = fedmrl("partition", "quickstart", "--json")
    rows = json.loads(out)["clients"]
    assert code == 0 and sum(sum(r["train"]) + sum(r["test"]) for r in rows) == 1797


def test_partition_counts_training_samples_only(fedmrl):
    out = fedmrl("partition", "quickstart")[1].replace("\n", " ")
    data = json.loads(fedmrl("partition", "quickstart", "--json")[1])
    assert "classes (training samples)" in out
    train = data["clients"][0]["train"]
    assert ", ".join(f"{c} ({n})" for c, n in zip(data["classes"], train, strict=True) if n) in out


def test_partition_writes_a_file_only_where_it_is_asked_to(fedmrl):
    assert fedmrl("partition", "quickstart")[0] == 0 and left_behind() == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[[0, 1]]", "must hold a list of clients for each of the 2 rounds; it holds 1"),
        ("[[0, 99], [0]]", "round 1's entry must list at least one client"),
        ("[[], [0]]", "round 1's entry must list at least one client"),
        ("3", "it holds no list"),
    ],
)
def test_a_bad_participation_file_leaves_no_folder_behind(fedmrl, content, said):
    Path("who.json").write_text(content)
    before = left_behind()
    code, _, err = fedmrl("run", "quickstart", *TINY, "--set", "participation=who.json")
    assert code == 2 and said in err and left_behind() == before
    code, _, err = fedmrl("run", "quickstart", *TINY, "--set", "participation=no.json")
    assert code == 2 and "cannot be read" in err and left_behind() == before


def test_a_run_that_was_stopped_while_its_folder_was_made_can_be_resumed(fedmrl):
    Path("r").mkdir()
    for name, content in {"rounds.jsonl": "", "split.json": "{"}.items():
        Path("r", name).write_text(content)
    assert fedmrl("run", "quickstart", *TINY, "--out", "r", "--resume")[0] == 0
    assert json.loads(Path("r/summary.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("name", [r"a$\foo$b", "^_%&#{}~", "[bold]x[red]"])
def test_a_recipe_may_have_any_name(fedmrl, name):
    Path(f"{name}.toml").write_text('rounds = 1\nclients = 2\n[method]\nname = "standalone"\n')
    code, _, err = fedmrl("compare", f"{name}.toml", *TINY, "--methods", "fedmrl")
    assert code == 0, err
    assert Path(f"runs/{name}-compare-1/accuracy.png").exists()
    assert fedmrl("report", f"runs/{name}-compare-1")[0] == 0
    code, out, err = fedmrl("partition", f"{name}.toml", *PLAIN, "--out", "who.png")
    assert code == 0 and name in out and Path("who.png").exists(), err


@pytest.mark.parametrize(
    "command",
    [
        ["run", "~nosuchuser/x.toml"],
        ["run", "~nosuchuser", "--resume"],
        ["data", "cifar10", "--dir", "~nosuchuser"],
        *(
            ["run", "quickstart", *sets(*settings)]
            for settings in (
                ["data.name=arrays", "data.file=~nosuchuser/x.npz"],
                ["data.name=cifar10", "data.dir=~nosuchuser"],
                ["partition.kind=given", "partition.file=~nosuchuser/x.json"],
                ["participation=~nosuchuser/x.json"],
            )
        ),
    ],
    ids=" ".join,
)
def test_the_home_of_a_user_that_there_is_not_is_told_in_a_sentence(fedmrl, command):
    code, _, err = fedmrl(*command)
    assert code == 2 and "names the home folder of an unknown user; write the path out" in err and err.count("\n") == 1
    assert left_behind() == []


@pytest.mark.parametrize(
    "command",
    [["recipes", "--keys"], ["recipes", "--json"], ["models"], ["partition", "quickstart"], ["run", "quickstart", *TINY]],
    ids=lambda command: " ".join(command[:2]),
)
def test_who_reads_no_further_and_who_has_few_letters_get_no_traceback(command, tmp_path):
    program = [sys.executable, "-m", "fedmrl", *command]
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "100"}
    shown = subprocess.run(program, env=plain, capture_output=True, cwd=tmp_path, check=False)
    assert shown.returncode == 0 and shown.stdout.isascii() and shown.stderr.isascii() and b"Traceback" not in shown.stderr
    assert command[0] == "run" or not shown.stderr
    reader, writer = os.pipe()
    os.close(reader)
    cut = subprocess.run(program, env=plain, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    os.close(writer)
    assert b"Traceback" not in cut.stderr and cut.returncode in (1, 141)


def test_models_prints_the_five_sizes(fedmrl):
    code, out, _ = fedmrl("models")
    assert code == 0
    assert all(n in out for n in ("2,621,558", "1,815,142", "1,320,558", "1,060,358", "670,058"))
    assert json.loads(fedmrl("models", "--json")[1])["cnn-5"]["parameters"] == 670_058


def test_methods_and_recipes_list_what_there_is(fedmrl):
    _, out, _ = fedmrl("methods")
    assert "method.d1 = 100" in out and "fedapen" in out
    assert json.loads(fedmrl("methods", "--json")[1])["fd"]["fields"]["gamma"]["default"] == 1.0
    _, out, _ = fedmrl("recipes")
    assert "quickstart" in out and "paper/cifar100-…" in out and "n50-homogeneous" in out
    _, out, _ = fedmrl("recipes", "paper")
    assert "paper/cifar100-n50-homogeneous" in out and "authors-code" not in out
    assert fedmrl("recipes", "nothing")[0] == 2
    assert "training.lr" in fedmrl("recipes", "--keys")[1]
    assert "paper/cifar10-n100" in json.loads(fedmrl("recipes", "--json")[1])
    assert json.loads(fedmrl("recipes", "--keys", "--json")[1])["rounds"]["default"] == 100


def test_the_version_is_told(fedmrl):
    from fedmrl import __version__

    assert fedmrl("--version")[:2] == (0, f"fedmrl {__version__}\n")


def test_help_and_no_arguments_explain_themselves(fedmrl):
    assert "compare" in fedmrl("--help")[1]
    assert "compare" in "".join(map(str, fedmrl()[1:]))
    assert fedmrl("run", "--help")[0] == 0


def start(folder, *arguments):
    # A shell that starts tests in the background has them, and all that they start, ignore Ctrl-C.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = [sys.executable, "-c", f"{heed}; from fedmrl.__main__ import main; main()", *map(str, arguments)]
    return subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_exits_130_keeps_the_last_whole_round_and_says_how_to_go_on(tmp_path, how):
    arguments = ["run", "quickstart", *TINY, "--set", "rounds=2000", "--out", "r"]
    process = start(tmp_path, *arguments)
    log = tmp_path / "r" / "rounds.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and not (log.exists() and log.read_text().count("\n") >= 3):
        time.sleep(0.05)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    done = json.loads((tmp_path / "r" / "checkpoint" / "state.json").read_text())["rounds"]
    assert f"fedmrl: stopped after round {done} of 2000, which is kept; continue with: fedmrl run r --resume" in err
    assert log.read_text().count("\n") == done >= 3
    assert "Traceback" not in err


def test_the_way_to_go_on_names_the_device_engine_and_store_that_were_asked_for(fedmrl, monkeypatch):
    def stop(*_, **__):
        raise InterruptedRun(1, 2, Path("r"))

    monkeypatch.setattr("fedmrl.federation.launch.run_seeds", stop)
    _, _, err = fedmrl("run", "quickstart", "--out", "r", "--device", "cpu", "--engine", "batched", "--store", "host")
    assert "continue with: fedmrl run r --resume --device cpu --engine batched --store host" in err


def test_ctrl_c_before_a_run_has_begun_says_so(fedmrl, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedmrl.federation.launch.prepare", stop)
    code, _, err = fedmrl("run", "quickstart", *TINY)
    assert (code, err) == (130, "fedmrl: stopped before training began\n") and not Path("runs").exists()


@pytest.mark.parametrize(
    ("command", "stops", "says"),
    [
        ("bench", "fedmrl.bench.measure", "stopped before every row was measured, so nothing is written; to measure fewer"),
        ("partition", "fedmrl.data.sources.load", "stopped; repeat the command to start again"),
    ],
)
def test_ctrl_c_in_a_command_that_does_not_train_speaks_of_no_training(fedmrl, monkeypatch, command, stops, says):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(stops, stop)
    code, _, err = fedmrl(command, "quickstart")
    assert code == 130 and says in err and "training" not in err


def test_a_second_demo_says_that_its_folder_is_there_and_what_to_do(fedmrl):
    Path("federation-demo").mkdir()
    Path("federation-demo", "server.toml").touch()
    code, _, err = fedmrl("demo", "federation")
    assert (code, err) == (2, "fedmrl: federation-demo is not empty; delete it, or name a new folder with --out\n")


def test_a_run_on_files_named_by_set_goes_on_from_its_folder(fedmrl):
    import shutil

    shutil.copy(data_file(), "own.npz")
    assert fedmrl("run", "quickstart", *TINY, *sets("data.file=own.npz"), "--out", "r")[0] == 0
    assert fedmrl("run", "r", "--resume")[0] == 0
    assert fedmrl("run", "r/config.toml", "--out", "again")[0] == 0


def test_names_with_spaces_and_brackets_are_printed_as_they_are(fedmrl):
    code, out, _ = fedmrl("run", "quickstart", *TINY, "--out", "my [/b] run")
    assert code == 0 and "my [/b] run" in out


def test_a_folder_that_was_never_begun_can_be_used(fedmrl):
    Path("r").mkdir()
    Path("r/split.json").write_text("{")  # as a kill in the middle of creating it leaves it
    assert fedmrl("run", "quickstart", *TINY, "--out", "r")[0] == 0


def test_reproduce_lists_what_it_would_run_and_runs_it(fedmrl):
    code, out, _ = fedmrl("reproduce", "inference", "--quick", "--dry-run")
    assert code == 0
    assert "digits-n20/fedmrl" in out
    assert "a timed round" in out
    assert "1 run left" in out
    assert not left_behind()
    code, _, err = fedmrl("reproduce", "inference", "--quick", "--minutes", "0")
    assert code == 0
    assert "the time is up: 1 of 1 cells are left; the same command continues from here" in err
    assert not left_behind()
    code, out, err = fedmrl("reproduce", "inference", "--quick")
    assert code == 0, err
    assert "0 of 1 cells are measured" in err
    cell = json.loads(Path("results/quick/cells/digits-n20/fedmrl-seed-0.json").read_text())
    assert cell["command"] == "fedmrl reproduce digits-n20/fedmrl --seeds 0 --quick"
    assert Path("results/quick/index.html").exists()
    assert Path("results/quick/figures/inference.pdf").exists()
    assert Path("results/quick/tables/table-hetero.tex").exists()
    _, out, _ = fedmrl("reproduce", "inference", "--quick", "--dry-run")
    assert "0 runs left" in out
    code, _, err = fedmrl("reproduce", "digits-n20/fedmrl", "--quick", "--no-report")
    assert "1 of 1 cells are measured in results/quick; --again repeats them" in err
    Path("results/quick/cells/digits-n20/fedmrl-seed-0.json").write_text("{}")
    code, _, err = fedmrl("reproduce", "inference", "--quick")
    assert code == 2
    assert "fedmrl-seed-0.json is not a cell of a reproduction" in err


@pytest.fixture
def short(monkeypatch):
    """The small reproduction in a round."""
    from fedmrl.reproduce import experiments

    real = experiments.recipe_of
    monkeypatch.setattr(experiments, "recipe_of", lambda *asked: real(*asked).model_copy(update={"rounds": 1}))


def test_reproduce_again_leaves_what_is_stored_and_stands_beside_it(fedmrl, short):
    command = ["reproduce", "digits-n5/standalone", "--quick", "--no-report"]
    assert fedmrl(*command)[0] == 0
    stored = Path("results/quick/cells/digits-n5/standalone-seed-0.json")
    before, new = stored.read_bytes(), Path("results/quick/again/cells/digits-n5/standalone-seed-0.json")
    code, out, _ = fedmrl(*command, "--again", "--dry-run")
    assert code == 0 and "1 run left" in out and not new.exists()
    for _ in range(2):  # the second time, too
        code, out, err = fedmrl(*command, "--again")
        assert code == 0 and "0 of 1 cells are measured in results/quick/again" in err
        assert "digits-n5/standalone" in out and "+0.00" in out
        assert json.loads(new.read_text())["accuracy"] == json.loads(before)["accuracy"]
    assert stored.read_bytes() == before


def test_reproduce_on_a_cpu_goes_through_its_stages_and_names_its_scale(fedmrl, monkeypatch):
    """A stage of what was found decides what the next one wants; both are the small reproduction's runs here."""
    from fedmrl.reproduce import experiments
    from fedmrl.reproduce.experiments import CPU, QUICK, RunSpec, recipe_of

    def wanted(what, scale, cells):
        names = ["standalone", *(["fd"] if any(cell.variant == "standalone" for cell in cells) else [])]
        for stage, name in enumerate(names, start=1):
            recipe = recipe_of("digits-n5", name, QUICK).model_copy(update={"rounds": 1})
            yield RunSpec("digits-n5", name, recipe, (0,), stage)

    monkeypatch.setattr(experiments, "run_specs", lambda what, scale, cells=(): list(wanted(what, scale, cells)))
    code, _, err = fedmrl("reproduce", "all", "--scale", "cpu", "--no-report")
    assert code == 0, err
    cells = {path.name: json.loads(path.read_text()) for path in Path(f"results/{CPU.folder}/cells").glob("*/*.json")}
    assert sorted(cells) == ["fd-seed-0.json", "standalone-seed-0.json"]
    assert cells["fd-seed-0.json"]["command"] == "fedmrl reproduce digits-n5/fd --seeds 0 --scale cpu"
    assert cells["fd-seed-0.json"]["cpu_seconds"] > 0 and cells["fd-seed-0.json"]["wall_seconds"] > 0
    assert "left of stage 1" in err and "left of stage 2" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "there is no experiment 'nothing'"),
        (["all", "--seeds", "x"], "--seeds is 'x'"),
        (["search"], "there is no experiment 'search'"),
        (["all", "--scale", "cpu", "--quick"], "--quick means --scale quick, but --scale is cpu"),
        (["all", "--scale", "huge"], "--scale: there is no 'huge'; choose paper, cpu or quick"),
        (["all", "--engine", "fast"], "there is no"),
        (["all", "--device", "abacus"], "there is no 'abacus'"),
        (["cifar10-n100/fedmrl", "--out", "x"], "cifar-10-batches-bin/data_batch_1.bin is missing"),
    ],
)
def test_reproduce_refuses_in_a_sentence(fedmrl, arguments, said, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    code, _, err = fedmrl("reproduce", *arguments)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert not left_behind()


def test_runs_of_several_seeds_go_on_by_the_name_of_their_folder(fedmrl, monkeypatch):
    real, rounds = progress.watching, []

    @contextmanager
    def stopping(*words):
        with real(*words):

            def on_round(record):
                rounds.append(record.round)
                if len(rounds) == 1:
                    raise KeyboardInterrupt

            yield on_round

    monkeypatch.setattr(progress, "watching", stopping)
    code, _, err = fedmrl("run", "quickstart", *TINY, "--seeds", "3,11", "--device", "cpu")
    assert code == 130 and "continue with: fedmrl run runs/quickstart-fedmrl-1 --resume --device cpu" in err
    code, _, err = fedmrl("run", "runs/quickstart-fedmrl-1")
    assert code == 2 and "continue them with --resume, or name one of them, such as runs/quickstart-fedmrl-1/seed-3" in err
    shutil.rmtree("runs/quickstart-fedmrl-1/seed-11")  # as after a crash before its config was written
    Path("runs/quickstart-fedmrl-1/seed-11").mkdir()
    code, out, _ = fedmrl("run", "runs/quickstart-fedmrl-1", "--resume", "--device", "cpu", "--json")
    assert code == 0 and rounds == [1, 1, 2]
    assert [run["seed"] for run in json.loads(out)["runs"]] == [3, 11]
    assert fedmrl("run", "runs/quickstart-fedmrl-1", "--seeds", "11", "--resume", "--json")[0] == 0


SLOW = ("torch", "numpy", "pydantic", "matplotlib", "sklearn")
WHAT_IS_LOADED = f"""
import atexit, sys
atexit.register(lambda: print(*(name for name in {SLOW} if name in sys.modules), file=sys.stderr, end=""))
from fedmrl.cli import main
main()
"""


def slow_to_load(*words, **environment):
    """What the program printed, and which large libraries it had loaded by then."""
    program = [sys.executable, "-c", WHAT_IS_LOADED, *words]
    ended = subprocess.run(program, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return ended.stdout, ended.stderr


@pytest.mark.parametrize("words", ["--help", "run --help", "reproduce --help", "--version", "recipes paper"])
def test_help_and_lists_load_nothing_that_is_slow(words):
    printed, loaded = slow_to_load(*words.split())
    assert printed and loaded == ""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("run qui", "quickstart"), ("reproduce tab", "table-hetero"), ("data ", "cifar100"), ("run quick --engine b", "batched")],
)
def test_completion_knows_what_there_is_and_loads_nothing_that_is_slow(typed, offered):
    complete = {"_FEDMRL_COMPLETE": "complete_bash", "COMP_WORDS": f"fedmrl {typed}", "COMP_CWORD": str(typed.count(" ") + 1)}
    printed, loaded = slow_to_load(**complete)
    assert offered in printed.split() and loaded == ""


def test_what_options_offer_is_what_there_is():
    from fedmrl.data.cifar import CIFAR_FILES
    from fedmrl.engines import ENGINES, RAY
    from fedmrl.reproduce.experiments import EXPERIMENTS

    assert (*ENGINES, RAY) == options.ENGINE_NAMES
    assert sorted(EXPERIMENTS) == sorted(paper.EXPERIMENT_NAMES)
    assert tuple(CIFAR_FILES) == listing.DATASETS


COMMANDS = (
    *("run", "compare", "report", "reproduce", "bench", "partition", "leaves", "methods", "models", "recipes", "data"),
    *("deal", "server", "client", "federation", "demo"),
)


@pytest.mark.parametrize("width", [80, 120])
def test_no_help_text_is_cut(fedmrl, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    for words in ([], *([command] for command in COMMANDS)):
        _, out, _ = fedmrl(*words, "--help")
        assert "..." not in out.replace("RUN...", "").replace("[ARGS]...", "")
        assert "\\" not in out and "non-\n" not in out and max(map(len, out.splitlines())) <= width


def test_help_uses_a_wide_terminal(fedmrl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert max(map(len, fedmrl("run", "--help")[1].splitlines())) > 80


def test_recipes_fit_on_a_screen_and_no_number_is_broken(fedmrl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = fedmrl("recipes")
    assert len(out.splitlines()) <= 24
    _, out, _ = fedmrl("models")
    assert "2,621,558" in out


@pytest.mark.parametrize(("width", "tables"), [(80, 2), (120, 1)])
def test_a_comparison_breaks_no_number_on_a_narrow_terminal(fedmrl, monkeypatch, width, tables):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = fedmrl("compare", "quickstart", *PLAIN, "--methods", "fedproto,standalone", "--seeds", "0,1")
    rows = [line for line in out.splitlines() if line.startswith("│ Standalone")]
    assert len(rows) == tables and max(map(len, out.splitlines()[: 6 * tables])) <= width
    assert all(" ± " in cell and cell.strip().endswith("%") for cell in rows[0].split("│")[2:6])


VALUES = [0, -1, 10**30, 1e308, math.nan, True, "", "a\nb", "\U0001f600", "\0", "~nouser/x", "krum", datetime.date(2020, 1, 1)]
VALUES += [[], [[1]], [math.nan], {}, {"x": 1}, {"hidden": []}, [{"name": 3}]]
WHOLE = {
    **{"seed": 0, "rounds": 1, "clients": 4, "participation": 0.5, "imports": [], "extends": "quickstart"},
    "data": {"name": "arrays", "file": "tiny.npz", "mean": [1.0], "std": [2.0]},
    "partition": {"kind": "class", "classes_per_client": 2, "shares": [0.4, 0.6], "test_share": 0.2, "set_aside": 0},
    "models": {"local": [{"conv1": 2, "conv2": 2, "fc1": 8, "fc2": 8}, {"hidden": [8]}], "small": {"hidden": [4]}},
    "method": {"name": "fedmrl", "d1": 4, "m_small": 1.0, "mrl": True, "projector": "linear"},
    "aggregation": {"rule": "mean"},
    "training": {"lr": 0.1, "momentum": 0.1, "clip": 1.0, "epochs": 1, "batch_size": 8, "augment": {"flip": True, "crop": 1}},
    "evaluation": {"every": 1, "mode": "mix-large", "targets": [0.5]},
}


def keys_of(plain, above=()):
    """The path of every key and place in a recipe's tables and lists."""
    for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from keys_of(value, (*above, key))


def with_value(plain, path, value):
    """The recipe with one changed value."""
    changed = copy.deepcopy(plain)
    within = changed
    for key in path[:-1]:
        within = within[key]
    within[path[-1]] = value
    return changed


@pytest.mark.parametrize("path", list(keys_of(WHOLE)), ids=lambda path: ".".join(map(str, path)))
def test_whatever_a_recipe_says_the_program_runs_it_or_tells_why_not_in_a_line(fedmrl, tmp_path, path):
    shutil.copy(data_file(), "tiny.npz")
    for value in VALUES:
        Path("mine.toml").write_text(tomli_w.dumps(with_value(WHOLE, path, value)), encoding="utf-8")
        code, _, err = fedmrl("run", "mine.toml", "--out", "run")
        assert code in (0, 2, 3), value
        assert code != 2 or (len(err.splitlines()) == 1 and err.startswith("fedmrl: ")), value
        assert (tmp_path / "run").exists() is (code != 2), value
        shutil.rmtree("run", ignore_errors=True)


def test_a_net_that_does_not_fit_into_memory_is_refused_before_it_is_made(fedmrl, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["fedmrl.models.split"], "free_bytes", lambda device: 1024**3)
    shutil.copy(data_file(), "tiny.npz")
    recipe = WHOLE | {"models": {"local": [{"hidden": [100_000]}], "small": {"hidden": [4]}}}
    Path("mine.toml").write_text(tomli_w.dumps(recipe))
    code, _, err = fedmrl("run", "mine.toml", "--out", "run")
    assert code == 2 and "a client's net with MLP(100000) needs 37.3 GiB of memory for one tensor, and 1.0 GiB are free" in err
    assert not (tmp_path / "run").exists()


def test_a_federation_without_flower_says_what_to_install(fedmrl, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fedmrl.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    code, _, err = fedmrl("demo", "federation", "--out", "d")
    assert (code, left_behind()) == (2, [])
    assert err == "fedmrl: federations over a network need Flower; install it with: pip install 'fedmrl[flower]'\n"


def test_a_module_that_is_missing_elsewhere_is_not_taken_for_flower(fedmrl, monkeypatch):
    def load(*_, **__):
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    monkeypatch.setattr("fedmrl.config.load_named", load)
    with pytest.raises(ModuleNotFoundError, match="grpc"):
        fedmrl("run", "quickstart")

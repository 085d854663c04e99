"""Tables: missing numbers, words, and what is refused."""

import datetime

import numpy as np
import pandas as pd
import pytest

import fedmrl
from fedmrl import UserError
from fedmrl.data import Files, dataset_of
from fedmrl.data.sources import load
from fedmrl.data.tables import read_csv

FRAME = pd.DataFrame(
    {
        "age": [30.0, None, 50.0, 40.0],
        "site": ["left", "right", None, "left"],
        "smokes": [True, False, True, False],
        "state": ["ill", "well", "ill", "well"],
    }
)


def test_missing_numbers_become_the_mean_and_words_a_number_each_and_both_are_told():
    data = dataset_of(FRAME, "state")
    assert data.x.tolist() == [[30, 1, 0, 1], [40, 0, 1, 0], [50, 0, 0, 1], [40, 1, 0, 0]]
    assert data.notices == (
        "missing numbers become the mean of the training data, in the columns age (1)",
        "words become one number for each word, in the columns site (2)",
    )
    prepared = data.preparation
    assert [column.model_dump() for column in prepared.columns] == [
        {"name": "age", "fill": 40.0, "words": None},
        {"name": "site", "fill": 0.0, "words": ["left", "right"]},
        {"name": "smokes", "fill": 0.0, "words": None} | {"fill": 0.5},
    ]
    assert prepared.features(FRAME).tolist() == data.x.tolist()
    later = pd.DataFrame({"smokes": [False], "extra": [1], "site": ["right"], "age": [None]})
    assert prepared.features(later).tolist() == [[40, 0, 1, 0]]
    assert prepared.features([{"age": 3, "site": "left", "smokes": True}]).tolist() == [[3, 1, 0, 1]]


def test_a_preparation_survives_json():
    prepared = dataset_of(FRAME, "state").preparation
    assert fedmrl.data.Preparation.from_plain(prepared.plain()) == prepared


def test_missing_numbers_become_the_mean_of_the_runs_own_training_samples(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=40), "b": rng.normal(size=40), "y": np.arange(40) % 2})
    frame.loc[::5, "a"] = None
    runs = fedmrl.run_seeds(
        "quickstart", [0, 1], data=frame, label="y", clients=2, participation=1.0, partition={"kind": "iid"}, rounds=1,
        method="standalone", models={"local": [{"hidden": [3]}]}, outs=[tmp_path / "0", tmp_path / "1"],
    )  # fmt: skip
    import json

    for run, folder in zip(runs, ("0", "1"), strict=True):
        split = json.loads((tmp_path / folder / "split.json").read_text())
        train = [row for own in split["clients"] for row in own["train"]]
        assert run.preparation.columns[0].fill == pytest.approx(frame["a"].iloc[train].mean(), rel=1e-5)
    assert runs[0].preparation.columns[0].fill != runs[1].preparation.columns[0].fill


def test_each_client_may_lack_words_that_another_has():
    data = dataset_of([FRAME, FRAME.assign(site=["low", "left", "low", "left"])], "state")
    assert data.preparation.columns[1].words == ["left", "low", "right"]


def test_csv_files_have_numbers_words_and_gaps(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\ufeffage;site;n\n1,5;left;3\n;right;NA\n", encoding="utf-8")
    columns = read_csv(path)
    assert columns["site"].tolist() == ["left", "right"] and columns["n"].tolist() == [3, None]
    assert columns["age"].tolist() == ["1,5", None]


@pytest.mark.parametrize("name", ["none", "NA", "?"])
def test_a_class_of_words_may_be_called_like_a_missing_value(tmp_path, name):
    path = tmp_path / "a.csv"
    path.write_text(f"a,b,state\n1,NA,{name}\n2,3,ill\n3,?,{name}\n4,4,ill\n")
    data = dataset_of(path, "state")
    assert sorted(data.classes) == sorted([name, "ill"]) and data.missing[:, 1].tolist() == [True, False, True, False]


@pytest.mark.parametrize("labels", [["0", "NA", "1"], ["ill", "", "well"]])
def test_a_label_is_missing_if_its_cell_is_empty_or_says_so_among_numbers(tmp_path, labels):
    path = tmp_path / "a.csv"
    path.write_text("a,label\n" + "".join(f"{row},{label}\n" for row, label in enumerate(labels)))
    with pytest.raises(UserError, match="the label of sample 1 is missing; leave it out"):
        dataset_of(path)


def test_codes_with_underscores_are_words_in_a_csv_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("code,b\n1_0,1\n2_0,2\n")
    assert read_csv(path)["code"].tolist() == ["1_0", "2_0"]


def test_a_ragged_row_is_named_by_its_line_in_the_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a,b\n\n"x\ny",1\n\n1,2,3\n')
    with pytest.raises(UserError, match=r"line 6 has 3 values, and the header 2"):
        read_csv(path)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_file_is_the_frame_that_was_written(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        FRAME.to_parquet(path)
    else:
        FRAME.astype({"smokes": int}).to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    data = load(Files(files=[str(path)], label="state"))
    assert data.x.tolist() == dataset_of(FRAME, "state").x.tolist() and data.classes == ("ill", "well")
    assert data.preparation.features(path).tolist() == data.x.tolist()


def frame(**columns):
    return pd.DataFrame({"a": [1.0, 2, 3, 4], **columns, "y": [0, 1, 0, 1]})


REFUSED = {
    "many words": (
        lambda: dataset_of(pd.DataFrame({"name": [f"n{i}" for i in range(30)], "y": [0, 1] * 15}), "y"),
        r"column 'name' has 30 different words, more than 20; leave it out",
    ),
    "dates": (lambda: dataset_of(frame(day=pd.date_range("2020", periods=4)), "y"), "column 'day' is of type datetime64"),
    "dates as objects": (lambda: dataset_of(frame(day=[datetime.date(2020, 1, 1)] * 4), "y"), "'day' has values of type date"),
    "mixed": (lambda: dataset_of(frame(m=[1, "x", 2, "y"]), "y"), "column 'm' has words and numbers"),
    "no values": (lambda: dataset_of(frame(e=[None] * 4), "y"), "column 'e' has no values; leave it out"),
    "infinite": (lambda: dataset_of(frame(i=[1, np.inf, 2, 3]), "y"), "column 'i' has values that are infinite"),
    "no label": (lambda: dataset_of(frame()), "name the column of the labels as label; its columns are 'a', 'y'"),
    "another label": (lambda: dataset_of(frame(), "z"), "there is no column 'z' for the labels; its columns are 'a', 'y'"),
    "label only": (lambda: dataset_of(frame()[["y"]], "y"), "has no column beside the labels"),
    "label of a missing value": (
        lambda: dataset_of(frame().assign(y=["a", None, "b", "a"]), "y"),
        "the label of sample 1 is missing; leave it out",
    ),
    "regression": (lambda: dataset_of(frame().assign(y=[0.5, 1, 2, 3]), "y"), "must be classes, as words or whole numbers"),
    "two columns of a name": (
        lambda: dataset_of(pd.DataFrame([[1, 2, 0]], columns=["a", "a", "y"]), "y"),
        "has two columns 'a'; rename one",
    ),
    "other columns elsewhere": (
        lambda: dataset_of([frame(), frame(b=[1, 2, 3, 4])], "y"),
        "client 1's data has a column 'b', and client 0's data has none",
    ),
    "words elsewhere": (
        lambda: dataset_of([frame(b=[1, 2, 3, 4]), frame(b=["x", "y", "x", "y"])], "y"),
        "client 0's data: column 'b' has numbers, and elsewhere words such as 'x'",
    ),
    "labels of another kind": (
        lambda: dataset_of([frame(), frame().assign(y=["p", "q"] * 2)], "y"),
        "the labels of client 0's data are whole numbers, and those of client 1's data words; make them alike",
    ),
    "a new word": (
        lambda: dataset_of(FRAME, "state").preparation.features(FRAME.assign(site="middle")),
        "column 'site' has 'middle', which the training data has not; it knows 'left', 'right'",
    ),
    "an absent column": (
        lambda: dataset_of(FRAME, "state").preparation.features(FRAME.drop(columns="age")),
        "the input has no column 'age'; it needs 3 columns, as in training",
    ),
    "words for numbers": (
        lambda: dataset_of(FRAME, "state").preparation.features(FRAME.assign(age="old")),
        "column 'age' has words such as 'old', and must have numbers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_cannot_be_used_is_refused_in_a_sentence_that_names_the_column(case):
    call, says = REFUSED[case]
    with pytest.raises(UserError, match=says) as refusal:
        call()
    assert len(str(refusal.value).splitlines()) == 1

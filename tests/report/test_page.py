"""What the page of runs says, what it refuses, and that nothing in a file can become markup."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from damage import damaged
from tiny import tiny_recipe

import fedmrl
from fedmrl.errors import UserError
from fedmrl.federation.launch import run_seeds
from fedmrl.report.page import page, page_data, write_page
from fedmrl.report.rendering import embedded
from fedmrl.report.runs import find_runs, make_series
from fedmrl.report.tables import NO_BREAK, comparison_rows
from fedmrl.results import RunResult


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two methods with two seeds each, as a comparison leaves them."""
    folder = tmp_path_factory.mktemp("made") / "both"
    for method in ("fedmrl", "standalone"):
        recipe = tiny_recipe(method, evaluation__targets=[0.01, 1.0])
        run_seeds(recipe, [0, 1], outs=[folder / f"{method}-seed-{seed}" for seed in (0, 1)])
    return folder


@pytest.fixture
def runs(made, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(made, tmp_path / "both")
    return tmp_path / "both"


def data_of(*paths):
    found, left_out = find_runs(paths)
    return page_data(make_series(found), left_out)


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def change(folder, **changes):
    summary = {**summary_of(folder), **changes}
    kept = {k: v for k, v in summary.items() if v is not None and k != "sha256"}  # as an older version wrote it
    (folder / "summary.json").write_text(json.dumps(kept))


def line_of(data, name, protocol):
    """A series' line in the chart of a protocol."""
    return next(line for line in data["charts"][protocol]["lines"] if line["name"] == name)


def accuracy_of(federation, name, protocol="fair"):
    return next(column["values"] for column in federation["accuracy"][protocol] if column["title"] == name)


def column_of(federation, title):
    return next(column["values"] for column in federation["columns"] if column["title"] == title)


def plain(text):
    return text.replace(NO_BREAK, " ")


def test_seeds_of_one_method_are_one_series_with_their_mean_and_range(made):
    data = data_of(made)
    assert {one["name"]: one["seeds"] for one in data["series"]} == {"FedMRL": [0, 1], "Standalone": [0, 1]}
    mine = line_of(data, "FedMRL", "fair")
    last = [summary_of(made / f"fedmrl-seed-{seed}")["accuracy"]["all"]["aggregated"]["mix-large"]["last"] for seed in (0, 1)]
    assert [place for place, _ in data["charts"]["fair"]["places"]] == [2, 3]
    assert (mine["low"][-1], mine["high"][-1]) == pytest.approx((100 * min(last), 100 * max(last)), abs=0.01)
    assert mine["mean"][-1] == pytest.approx(100 * sum(last) / 2, abs=0.01)


def test_each_protocol_has_its_own_curve_and_headline(made):
    data = data_of(made / "fedmrl-seed-0")
    accuracy = summary_of(made / "fedmrl-seed-0")["accuracy"]
    fair, own = (accuracy["all"][view]["mix-large"]["last"] for view in ("aggregated", "own"))
    paper = accuracy["participants"]["own"]["mix-large"]["best"]
    for protocol, value in (("fair", fair), ("own", own), ("paper", paper)):
        assert plain(data["answers"][protocol]["cards"][0]["value"]) == f"{100 * value:.1f} %"
    assert line_of(data, "FedMRL", "own")["mean"][-1] == pytest.approx(100 * own, abs=0.01)
    rounds = [place for place, _ in data["charts"]["paper"]["places"]]
    assert rounds == [1, 2, 3], "participants are measured in every round"
    assert max(line_of(data, "FedMRL", "paper")["mean"]) == pytest.approx(100 * paper, abs=0.01)


def ending(runs, *by_seed):
    """What the page says when FedMRL and Standalone end with these accuracies, by seed."""
    for seed, accuracies in enumerate(by_seed):
        for method, value, view, mode in zip(
            ("fedmrl", "standalone"), accuracies, ("aggregated", "own"), ("mix-large", "local"), strict=True
        ):
            accuracy = summary_of(runs / f"{method}-seed-{seed}")["accuracy"]
            accuracy["all"][view][mode]["last"] = value
            change(runs / f"{method}-seed-{seed}", accuracy=accuracy)
    return {key: plain(str(words)) for key, words in data_of(runs)["answers"]["fair"].items()}


def test_the_answer_names_winner_lead_cost_and_how_many_seeds_agree(runs):
    answer = ending(runs, (0.9, 0.5), (0.8, 0.7))
    assert answer["title"] == "FedMRL ends 25.0 points ahead of Standalone"
    assert "right on 85.0 % of a client’s test samples and Standalone on 60.0 %, mean over all 4 clients" in answer["lead"]
    assert "ahead in 2 of 2 seeds" in answer["lead"] and "(Standalone: 0 B)" in answer["lead"]


def test_what_seeds_disagree_about_is_no_win(runs):
    answer = ending(runs, (0.9, 0.5), (0.7, 0.8))
    assert answer["title"] == "FedMRL and Standalone end level, as far as 2 seeds can say"
    assert "ahead in 1 of 2 seeds" in answer["lead"]


def test_what_prints_alike_is_level(runs):
    assert ending(runs, (0.8004, 0.8001), (0.8004, 0.8001))["title"] == "FedMRL and Standalone end level"


def test_the_worst_client_is_the_lowest_of_those_that_the_mean_is_over(runs):
    folder = runs / "fedmrl-seed-0"
    rows = [
        {**row, "accuracy": accuracy, "aggregated_mix-large": accuracy, "own_mix-large": accuracy + 0.25, "rounds": rounds}
        for row, accuracy, rounds in zip(summary_of(folder)["clients"], (0.0, 0.25, 0.5, 0.75), (0, 2, 1, 3), strict=True)
    ]
    change(folder, clients=rows)
    answer, own = (data_of(folder)["answers"][protocol] for protocol in ("fair", "own"))
    worst = {"fair": answer["cards"][1], "own": own["cards"][1]}
    assert {protocol: plain(card["value"]) for protocol, card in worst.items()} == {"fair": "0.0 %", "own": "25.0 %"}
    assert worst["fair"]["label"] == "Worst client (never took part)"
    assert [card["label"] for card in data_of(folder)["answers"]["paper"]["cards"]][1] == "Sent and received"
    assert "all 4 clients after 3 rounds, 1 of whom never took part" in answer["lead"]
    beside = data_of(folder, runs / "standalone-seed-0")["answers"]["fair"]["cards"]
    assert ["worst client (never took part)", "0.0 %"] in [
        [name, plain(words)] for card in beside for name, words in card["pairs"]
    ]


def test_where_fair_and_own_disagree_who_is_first_the_page_says_so(runs):
    for seed in (0, 1):
        folder = runs / f"fedmrl-seed-{seed}"
        accuracy = summary_of(folder)["accuracy"]
        accuracy["all"]["aggregated"]["mix-large"]["last"], accuracy["all"]["own"]["mix-large"]["last"] = 0.2, 0.9
        change(folder, accuracy=accuracy)
        own = summary_of(runs / f"standalone-seed-{seed}")["accuracy"]
        own["all"]["own"]["local"]["last"] = 0.5
        change(runs / f"standalone-seed-{seed}", accuracy=own)
    said = "The first place depends on the protocol: Standalone under fair, FedMRL under own."
    assert data_of(runs)["disagreements"] == [said]


def test_the_label_of_a_curve_is_what_its_protocol_counts(made):
    data = data_of(made)
    mine = {protocol: line_of(data, "FedMRL", protocol) for protocol in ("fair", "paper")}
    best = [summary_of(made / f"fedmrl-seed-{seed}")["accuracy"]["participants"]["own"]["mix-large"] for seed in (0, 1)]
    card = next(card for card in data["answers"]["paper"]["cards"] if card["label"] == "FedMRL")
    assert mine["paper"]["end"] == f"FedMRL best {card['value']}" and mine["fair"]["rings"] == []
    assert mine["paper"]["rings"] == [[of["best_round"], pytest.approx(100 * of["best"], abs=0.01)] for of in best]


def test_what_one_test_sample_is_worth_is_said_where_clients_have_few(runs):
    folder = runs / "fedmrl-seed-0"
    rows = summary_of(folder)["clients"]
    change(folder, clients=[{**row, "test_samples": 7} for row in rows])
    federation = data_of(folder)["federations"][0]
    assert column_of(federation, "test samples") == [7] * 4
    assert "one sample is worth 14 points" in plain(federation["says"]["fair"])
    change(folder, clients=[{**row, "test_samples": 400} for row in rows])
    assert "one of them" not in data_of(folder)["federations"][0]["says"]["fair"]


def test_a_run_alone_says_what_it_reached(made):
    answer = data_of(made / "standalone-seed-1")["answers"]["fair"]
    assert answer["title"].startswith("Standalone reached ") and "all 4 clients after 3 rounds" in answer["lead"]


def test_clients_are_compared_only_with_those_that_have_the_same_samples(made):
    data = data_of(made)
    assert [federation["label"] for federation in data["federations"]] == ["seed 0", "seed 1"]
    names = [one["name"] for one in data["series"]]
    for seed, federation in enumerate(data["federations"]):
        for name in names:
            rows = summary_of(made / f"{name.lower()}-seed-{seed}")["clients"]
            assert accuracy_of(federation, name) == pytest.approx([row["accuracy"] for row in rows], abs=1e-5)


def test_the_split_adds_up_to_each_clients_training_samples(made):
    summary = summary_of(made / "fedmrl-seed-0")
    assert [sum(own.values()) for own in summary["split"]] == [row["train_samples"] for row in summary["clients"]]
    assert [" ".join(own) for own in summary["split"]] == [row["classes"] for row in summary["clients"]]
    split = data_of(made / "fedmrl-seed-0")["federations"][0]["split"]
    assert split["names"] == ["0", "1", "2", "3"]
    assert [sum(own[1::2]) for own in split["counts"]] == [row["train_samples"] for row in summary["clients"]]


def test_a_run_of_an_older_version_has_a_page_without_a_heat_map(runs):
    change(runs / "fedmrl-seed-0", split=None, class_names=None, engine=None)
    data = data_of(runs / "fedmrl-seed-0")
    federation = data["federations"][0]
    assert federation["split"] is None and len(column_of(federation, "training samples")) == 4
    assert "older version" in federation["splitSays"]
    assert write_page([runs / "fedmrl-seed-0"]).is_file()


def test_a_target_that_was_not_reached_is_told_from_one_that_was(made):
    targets = data_of(made)["targets"]["fair"]
    assert [group["target"] for group in targets] == ["1 %", "100 %"]
    assert all(row is not None and len(row) == 5 for row in targets[0]["rows"])
    assert targets[1]["rows"] == [None, None]


def test_a_target_that_some_seeds_reached_says_how_many(runs):
    targets = summary_of(runs / "fedmrl-seed-0")["targets"]
    missed = [{**cost, "reached": False} for cost in targets]
    change(runs / "fedmrl-seed-0", targets=missed)
    data = data_of(runs)
    place = [one["name"] for one in data["series"]].index("FedMRL")
    assert data["targets"]["fair"][0]["rows"][place][0].endswith("(1 of 2 seeds)")


def test_seeds_that_were_run_as_one_share_their_time(runs):
    for seed in (0, 1):
        change(runs / f"fedmrl-seed-{seed}", together=2, seconds={"training": 500.0})
        change(runs / f"standalone-seed-{seed}", together=None, seconds={"training": 20.0})
    data = data_of(runs)
    found = {one["name"]: total["words"]["time"] for one, total in zip(data["series"], data["totals"], strict=True)}
    assert found == {"FedMRL": "4 min 10 s", "Standalone": "20.0 s"}
    rows = comparison_rows({"fedmrl": "FedMRL"}, {"fedmrl": [RunResult.read(runs / f"fedmrl-seed-{seed}") for seed in (0, 1)]})
    assert rows[0][-1] == "250.0 s"


def test_many_clients_are_cut_in_the_heat_map_alone(runs):
    folder = runs / "fedmrl-seed-0"
    summary = summary_of(folder)
    change(folder, clients=summary["clients"] * 1000, split=summary["split"] * 1000)
    federation = data_of(folder)["federations"][0]
    assert len(federation["split"]["counts"]) == 500 and "the first 500 of 4,000 clients" in federation["splitSays"]
    assert len(accuracy_of(federation, "FedMRL")) == 4000, "shares of clients are of all of them"


def test_runs_of_one_method_are_told_apart_by_what_differs(tmp_path):
    for d1 in (2, 3):
        fedmrl.run(tiny_recipe(rounds=1, method__d1=d1), out=tmp_path / f"d1-{d1}")
    data = data_of(tmp_path)
    assert sorted(one["name"] for one in data["series"]) == ["FedMRL (d1 = 2)", "FedMRL (d1 = 3)"]
    assert data["notes"] == [], "a method's own fields are what is compared"


def test_the_same_run_twice_is_shown_once_and_its_copy_beside_it(runs, tmp_path):
    one = runs / "fedmrl-seed-0"
    assert len(data_of(one, one)["series"]) == 1
    shutil.copytree(one, tmp_path / "copy")
    assert sorted(s["name"] for s in data_of(one, tmp_path / "copy")["series"]) == ["FedMRL (copy)", "FedMRL (fedmrl)"]


def test_runs_that_differ_in_more_than_the_method_carry_a_warning(made, tmp_path):
    fedmrl.run(tiny_recipe("fd", rounds=1, training__lr=0.01), out=tmp_path / "other")
    (note,) = data_of(made / "fedmrl-seed-0", tmp_path / "other")["notes"]
    assert "differ in more than the method" in note and "rounds: " in note and "training.lr: " in note


def test_seeds_that_only_some_methods_have_are_told(made):
    (note,) = data_of(made / "fedmrl-seed-0", made / "fedmrl-seed-1", made / "standalone-seed-0")["notes"]
    assert "FedMRL: 0, 1" in note and "Standalone: 0" in note


def test_a_run_that_diverged_is_left_out_and_named(runs):
    change(
        runs / "standalone-seed-1",
        status="diverged",
        diverged={"client": 2, "round": 1, "reason": "client 2's loss became NaN"},
    )
    (runs / "standalone-seed-0" / "summary.json").unlink()
    data = data_of(runs)
    assert [one["name"] for one in data["series"]] == ["FedMRL"]
    assert "is not finished" in data["notes"][0] and "client 2's loss became NaN" in data["notes"][1]


def test_how_to_run_it_again_names_the_recipe_and_its_seeds(made):
    commands = {s["name"]: r["command"] for s, r in zip(data_of(made)["series"], data_of(made)["recipes"], strict=True)}
    assert commands["FedMRL"] == f"fedmrl run {made}/fedmrl-seed-0/config.toml --seeds 0,1"


class Elements(HTMLParser):
    """The names of all elements, and the text of the scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, text):
        self.texts.append(text)
        if self.scripts and self.lasttag == "script":
            self.scripts[-1] += text


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{data}}<!--"


def test_no_name_in_a_file_becomes_markup(runs, tmp_path):
    folder = runs / "fedmrl-seed-0"
    rows = summary_of(folder)["clients"]
    change(folder, method=EVIL, device=EVIL, class_names=[EVIL] * 4, clients=[{**row, "model": EVIL} for row in rows])
    text = write_page([folder], tmp_path / "page.html").read_text(encoding="utf-8")
    clean = page(make_series(find_runs([runs / "fedmrl-seed-1"])[0]))
    found, expected = Elements(text), Elements(clean)
    assert found.tags == expected.tags
    assert json.loads(found.scripts[0])["federations"][0]["split"]["names"] == [EVIL] * 4
    assert EVIL in found.texts, "it is shown as it is"


def test_a_name_that_is_no_text_is_shown_as_well_as_can_be(runs):
    folder = runs / "fedmrl-seed-0"
    change(folder, title="broken\udcff")
    assert "broken? reached" in write_page([folder]).read_text(encoding="utf-8")


def test_embedded_json_reads_back_as_it_was():
    assert json.loads(embedded([EVIL, " ", "&amp;"])) == [EVIL, " ", "&amp;"]


def test_the_page_asks_for_nothing_from_elsewhere(made):
    text = page(make_series(find_runs([made])[0]))
    assert "default-src 'none'" in text
    assert not [word for word in ("https://", 'src="', "@import", "url(") if word in text]
    assert text.count("http://") == text.count("http://www.w3.org/2000/svg") == 1


def test_the_page_lies_in_the_folder_or_here_if_there_are_several(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_page([runs]) == runs / "report.html"
    assert write_page([runs / "fedmrl-seed-0", runs / "fedmrl-seed-1"]) == Path("report.html")


def broken(name, text):
    def change_it(folder):
        (folder / "fedmrl-seed-0" / name).write_text(text)

    return change_it


def without_checksums(runs):
    """As an older version wrote them, so that what is wrong in a file is found by looking into it."""
    for path in runs.glob("*/summary.json"):
        plain = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in plain.items() if key not in ("files", "sha256")}))


def without_view(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        for by_view in record["accuracy"].values():
            del by_view["aggregated"]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


WHERE = {"client": 1, "round": 2, "reason": "why"}


def unlink(name):
    return lambda folder: (folder / "fedmrl-seed-0" / name).unlink()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (broken("summary.json", '{"status": '), "summary.json is damaged"),
        (broken("summary.json", "[]"), "summary.json is damaged"),
        (broken("summary.json", '{"status": "finished"}'), r"summary.json is damaged \(method: Field required\)"),
        (broken("config.toml", "= 3"), "config.toml is damaged"),
        (broken("rounds.jsonl", '{"round": 1}\n'), r"rounds.jsonl is damaged \(participants: Field required"),
        (broken("rounds.jsonl", ""), "lacks the accuracy of"),
        (lambda folder: without_view(folder / "fedmrl-seed-0" / "rounds.jsonl"), "lacks the accuracy of 'aggregated'"),
        (unlink("split.json"), "split.json cannot be read"),
        (unlink("summary.json"), "is not finished; resume it with 'fedmrl run .* --resume'"),
        (lambda folder: change(folder / "fedmrl-seed-0", status="diverged", diverged=WHERE), "diverged.*: why"),
        (lambda folder: change(folder / "fedmrl-seed-0", flops=float("nan")), "flops: Input should be a valid integer"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence_and_nothing_is_written(runs, harm, says):
    without_checksums(runs)
    harm(runs)
    with pytest.raises(UserError, match=says):
        write_page([runs / "fedmrl-seed-0"])
    assert not list(runs.rglob("*report.html*"))


@pytest.mark.parametrize("name", ["summary.json", "rounds.jsonl"])
def test_a_field_that_is_missing_or_of_another_type_is_refused_in_a_sentence_or_the_page_is_made(runs, name):
    without_checksums(runs)
    path = runs / "fedmrl-seed-0" / name
    lines = [json.loads(line) for line in (path.read_text().splitlines() if name == "rounds.jsonl" else [path.read_text()])]
    for harm, changed in damaged(lines, ("other", [])):
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))
        try:
            page_data(make_series(find_runs([runs])[0]))
        except UserError as refusal:
            assert len(str(refusal).splitlines()) == 1, harm


def test_seeds_with_unlike_rounds_are_refused(runs):
    without_checksums(runs)
    lines = (runs / "fedmrl-seed-1" / "rounds.jsonl").read_text().splitlines()
    (runs / "fedmrl-seed-1" / "rounds.jsonl").write_text("\n".join(lines[:2]))
    with pytest.raises(UserError, match="different rounds"):
        write_page([runs])


def test_a_folder_without_a_finished_run_is_refused(runs, tmp_path):
    for folder in runs.iterdir():
        (folder / "summary.json").unlink()
    with pytest.raises(UserError, match="none of its runs is finished"):
        write_page([runs])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no run"):
        write_page([tmp_path / "empty"])
    with pytest.raises(UserError, match="does not exist"):
        write_page([tmp_path / "nowhere"])


@pytest.mark.parametrize(("out", "says"), [("summary.json", "name an .html file"), ("no/such/page.html", "cannot be written")])
def test_a_page_goes_only_where_it_can_and_harms_nothing(runs, out, says):
    with pytest.raises(UserError, match=says):
        write_page([runs], runs / out)


def test_a_target_that_nobody_reached_says_how_near_each_came(made):
    data = data_of(made)
    assert [(group["target"], group["reached"]) for group in data["targets"]["fair"]] == [("1 %", True), ("100 %", False)]
    assert dict(data["highest"]["fair"])["FedMRL"] == f"{max(line_of(data, 'FedMRL', 'fair')['mean']):.1f}{NO_BREAK}%"


def test_the_gain_chart_counts_who_gains_who_loses_and_who_ties(runs):
    for method, accuracies in (("fedmrl", (0.5, 1.0, 0.25, 0.5)), ("standalone", (0.5, 0.5, 0.5, 0.5))):
        folder = runs / f"{method}-seed-0"
        rows = zip(summary_of(folder)["clients"], accuracies, strict=True)
        change(folder, clients=[{**r, **{k: a for k in r if k.startswith(("accuracy", "agg", "own_"))}} for r, a in rows])
    data = data_of(runs / "fedmrl-seed-0", runs / "standalone-seed-0")
    names = data["federations"][0]["members"]
    pair = "-".join(str(next(place for place, one in names.items() if one == name)) for name in ("FedMRL", "Standalone"))
    gain = data["federations"][0]["gains"]["fair"][pair]
    assert gain["clients"] == [1, 0, 3, 2] and gain["labels"] == ["+50.0", "0.0", "0.0", "−25.0"]
    assert plain(gain["share"]) == "25 % of the clients gain" and gain["ties"] == [1, 2, "2 ties"]
    assert gain["says"] == " with FedMRL over Standalone: 1 of 4 are better, 1 worse, 2 the same."

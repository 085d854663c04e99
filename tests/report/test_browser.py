"""The page of runs in a real browser: what is clicked, hovered and typed, with no error and no request but for the file."""

import json
import re
import shutil

import pytest
from browsing import DESKTOP, browser, opening, playwright, reached_by_tab, size  # noqa: F401
from tiny import tiny_recipe

import fedmrl
from fedmrl.federation.launch import run_seeds
from fedmrl.report.page import write_page

INSIDE = "all => all.every(one => one.getBoundingClientRect().right <= one.closest('svg').getBoundingClientRect().right)"
"""Whether no label is cut by the edge of its chart."""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of three methods, one of them with two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    targets = {"evaluation__targets": [0.01, 1.0]}
    run_seeds(tiny_recipe(**targets), [0, 1], outs=[folder / "fedmrl-0", folder / "fedmrl-1"])
    for method in ("standalone", "fedproto"):
        fedmrl.run(tiny_recipe(method, **targets), out=folder / method)
    return write_page([folder])


@pytest.fixture
def page(browser, report, size):  # noqa: F811
    with opening(browser, size) as open_file:
        tab = open_file(report)
        tab.locator("#curves svg .line").first.wait_for(state="attached")  # a level line is hidden to playwright
        yield tab


def test_the_protocol_switch_changes_headline_cards_and_curves(page):
    def shown():
        parts = (page.locator("#answer").inner_text(), page.locator(".card:visible .value").first.inner_text())
        return (*parts, page.locator("#curves .line").first.get_attribute("d"), page.locator("#protocol-says").inner_text())

    fair = shown()
    page.get_by_role("radio", name="paper").click()
    paper = shown()
    assert all(before != after for before, after in zip(fair, paper, strict=True))
    assert "best round" in paper[0]
    page.get_by_role("radio", name="paper").focus()
    page.keyboard.press("ArrowLeft")
    assert page.get_by_role("radio", name="own").is_checked()
    assert "copy of the shared part" in shown()[3] and "copy of the shared part" in page.locator("#clients-says").inner_text()
    page.keyboard.press("ArrowLeft")
    assert shown() == fair


def test_a_curve_is_labelled_by_what_the_protocol_counts_and_its_best_round_is_ringed(page, size):  # noqa: F811
    def values(locator):
        return sorted(
            re.search(r"[\d.]+ %", text.replace("\xa0", " "))[0] for text in page.locator(locator).all_text_contents()
        )

    wide = size[0] > 640
    assert page.locator("#curves .ring").count() == 0
    assert not wide or values("#curves .end") == values(".card:visible .value")
    page.get_by_role("radio", name="paper").click()
    assert page.locator("#curves .ring").count() == 4, "one for each run"
    assert page.locator("#curves .end").evaluate_all(INSIDE)
    if wide:
        assert all(" best " in text for text in page.locator("#curves .end").all_text_contents())
        assert values("#curves .end") == values(".card:visible .value")


def test_a_method_looks_the_same_whoever_is_shown_beside_it(browser, report, page, tmp_path):  # noqa: F811
    def looks(tab):
        entries = tab.locator("#totals tbody tr").all()
        script = "path => [path.getAttribute('d'), getComputedStyle(path).fill]"
        return {row.locator(".name").inner_text(): row.locator(".marker").evaluate(script) for row in entries}

    every = looks(page)
    assert len(every) == 3 and len({str(style) for style in every.values()}) == 3
    with opening(browser, DESKTOP) as open_file:
        for chosen in (["standalone", "fedproto"], ["fedmrl-0"]):
            tab = open_file(write_page([report.parent / name for name in chosen], tmp_path / f"{chosen[0]}.html"))
            few = looks(tab)
            assert tab.locator("#curves .end").evaluate_all(INSIDE), "a label is not cut"
            assert few == {name: every[name] for name in few}


def test_a_wide_table_shows_that_there_is_more_and_scrolls_by_keyboard(page, size):  # noqa: F811
    if size[0] > 640:
        return
    table = page.locator("#clients .scroll")
    shaded = page.locator("#clients .shaded")
    playwright.expect(shaded).to_have_attribute("data-right", "")
    assert table.get_attribute("aria-label") and page.evaluate(
        "getComputedStyle(document.querySelector('#clients .shaded'), '::after').opacity"
    )
    table.focus()
    page.keyboard.press("ArrowRight")
    playwright.expect(shaded).to_have_attribute("data-left", "")
    table.evaluate("box => box.scrollTo(box.scrollWidth, 0)")
    playwright.expect(shaded).not_to_have_attribute("data-right", "")


def test_a_client_that_never_took_part_is_said_to_wherever_it_is_shown(browser, report, size, tmp_path):  # noqa: F811
    for method in ("standalone", "fedproto"):
        shutil.copytree(report.parent / method, tmp_path / method)
        path = tmp_path / method / "summary.json"
        summary = json.loads(path.read_text())
        del summary["sha256"]  # it is changed
        for client, row in enumerate(summary["clients"]):
            own = {name: client / 4 for name in row if name.startswith(("accuracy", "own_", "aggregated_"))}
            row |= {"rounds": client, **own}
        path.write_text(json.dumps(summary))
    with opening(browser, size) as open_file:
        page = open_file(write_page([tmp_path]))
        assert "never took part (1 of 4)" in page.locator("#clients-says").inner_text()
        assert "never" in page.locator("#clients tbody tr").first.inner_text()
        assert page.locator(".card:visible dd").nth(2).inner_text().startswith("0.0")
        assert page.locator(".card:visible dt").nth(2).inner_text() == "worst client (never took part)"
        page.locator("#differences .chart").focus()
        page.keyboard.press("ArrowRight")
        assert "never" in page.locator("#differences .tooltip").inner_text()


def test_the_words_are_explained_by_keyboard_and_on_a_phone(page):
    assert not page.locator("#glossary dt").first.is_visible()
    page.locator("#to-glossary").press("Enter")
    words = page.locator("#glossary dt").all_inner_texts()
    assert {"fair", "paper", "participants", "FLOPs", "rounds to a target"} <= set(words)
    playwright.expect(page.locator("#glossary-title")).to_be_in_viewport()


def test_a_chart_is_drawn_with_the_limits_ticks_and_labels_that_it_was_given(page):
    chart = page.evaluate("data.charts.fair")
    shown = set(page.locator("#curves svg text").all_text_contents())
    assert {label for axis in ("x", "y") for _, label in chart[axis]["ticks"]} <= shown
    assert page.locator("#curves .axis-title").all_inner_texts() == [chart["y"]["title"], chart["x"]["title"]]
    page.locator("#curves .chart").focus()
    page.keyboard.press("ArrowRight")
    said = page.locator("#curves [aria-live]").text_content()
    assert said.startswith(chart["places"][0][1])
    assert all(f"{line['name']} {line['labels'][0]}" in said for line in chart["lines"])


def test_the_contents_lead_to_every_section(page):
    links = page.locator(".contents a")
    assert links.all_inner_texts() == page.locator("main section h2").all_inner_texts()
    links.filter(has_text="Cost").press("Enter")
    playwright.expect(page.locator("#cost-title")).to_be_in_viewport()


def test_prose_is_as_wide_as_the_cards(page):
    widths = "all => all.filter(one => one.offsetParent).map(one => one.getBoundingClientRect().width)"
    cards = page.locator("#cards").evaluate("one => one.getBoundingClientRect().width")
    found = page.locator(".lead, .says").evaluate_all(widths)
    assert len(found) > 5 and found == pytest.approx([cards] * len(found))


def test_a_target_that_nobody_reached_is_folded_away(page):
    folded = page.locator("#targets details:visible")
    assert "Reached by none: 100 %" in folded.locator("summary").inner_text() and not folded.locator("dl").is_visible()
    assert "100 %" not in page.locator("#targets table:visible").inner_text().replace("\xa0", " ")
    folded.locator("summary").press("Enter")
    assert folded.locator("dt").all_inner_texts() == [one["name"] for one in page.evaluate("data.charts.fair.lines")]


def test_clients_that_tie_are_counted_where_they_lie(browser, report, size, tmp_path):  # noqa: F811
    for method in ("standalone", "fedproto"):
        shutil.copytree(report.parent / method, tmp_path / method)
        path = tmp_path / method / "summary.json"
        summary = json.loads(path.read_text())
        del summary["sha256"]  # it is changed
        for client, row in enumerate(summary["clients"]):
            row |= {
                name: 0.5 if client else 1.0 * (method == "fedproto")
                for name in row
                if name.startswith(("accuracy", "own_", "aggregated_"))
            }
        path.write_text(json.dumps(summary))
    with opening(browser, size) as open_file:
        page = open_file(write_page([tmp_path]))
        assert page.locator("#differences .tie").text_content() == "3 ties"
        assert page.locator("#differences .ties").count() == 1


def test_the_heat_map_has_its_colours_for_the_counts_that_there_are(page):
    split = page.evaluate("data.federations[0].split")
    counts = [count for own in split["counts"] for count in own[1::2]]
    assert (split["low"], split["high"]) == (min(counts), max(counts))
    assert page.locator(".ramp").inner_text().split() == [str(min(counts)), str(max(counts)), "training", "samples"]


def test_on_a_phone_accuracies_come_first_and_nothing_that_is_written_is_cut(page, size):  # noqa: F811
    heads = page.locator("#clients thead th").all_inner_texts()
    assert {text.split()[0] for text in heads[1:3]} <= {"FedMRL", "FedProto", "Standalone"} and heads[-1].startswith("took")
    captions = page.locator(".axis-title, .hint, .says, .lead, .facts, h1, h2, h3")
    cut = "all => all.filter(one => one.offsetParent && one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"
    assert captions.evaluate_all(cut) == []
    assert page.locator("#curves svg text, #differences svg text").evaluate_all(INSIDE)


def test_hovering_a_curve_shows_every_series_at_that_round(page):
    tooltip = page.locator("#curves .tooltip")
    assert not tooltip.is_visible()
    page.locator("#curves .chart").hover(position={"x": 60, "y": 120})
    assert re.match(r"Round 2\n", tooltip.inner_text())
    names = ("FedMRL", "FedProto", "Standalone")
    assert all(name in tooltip.inner_text() for name in names) and tooltip.inner_text().count("%") == 3
    page.mouse.move(0, 0)
    assert not tooltip.is_visible()


def test_the_arrow_keys_move_the_crosshair_and_say_what_is_there(page):
    page.locator("#curves .chart").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#curves .tooltip").inner_text().startswith("Round 2")
    page.keyboard.press("ArrowRight")
    assert page.locator("#curves .tooltip").inner_text().startswith("Round 3")
    assert page.locator("#curves [aria-live]").text_content().startswith("Round 3: ")
    page.keyboard.press("Home")
    assert page.locator("#curves .tooltip").inner_text().startswith("Round 2")
    page.keyboard.press("Escape")
    assert not page.locator("#curves .tooltip").is_visible()


def test_a_legend_entry_hides_its_curve_and_shows_it_again(page):
    entry = page.locator("#curves .legend button").first
    assert page.locator("#curves .line").count() == 3
    entry.click()
    assert page.locator("#curves .line").count() == 2 and entry.get_attribute("aria-pressed") == "false"
    entry.press("Enter")
    assert page.locator("#curves .line").count() == 3 and entry.get_attribute("aria-pressed") == "true"


def test_the_clients_can_be_sorted_by_mouse_and_by_keyboard(page):
    def column(number):
        return [row.locator("th, td").nth(number).inner_text() for row in page.locator("#clients tbody tr").all()]

    head = page.locator("#clients thead th")
    assert column(0) == ["0", "1", "2", "3"] and head.nth(0).get_attribute("aria-sort") == "ascending"
    head.nth(1).get_by_role("button").click()
    accuracies = [float(cell.split()[0]) for cell in column(1)]
    assert accuracies == sorted(accuracies, reverse=True) and head.nth(1).get_attribute("aria-sort") == "descending"
    head.nth(0).get_by_role("button").press("Enter")
    assert column(0) == ["0", "1", "2", "3"] and head.nth(1).get_attribute("aria-sort") is None
    head.nth(0).get_by_role("button").press("Space")
    assert column(0) == ["3", "2", "1", "0"] and head.nth(0).get_attribute("aria-sort") == "descending"


def test_the_gain_of_one_method_over_another_can_be_chosen(page):
    said = page.locator("#gain").inner_text()
    assert re.search(r"\d+\s% of the clients gain with .* over .*: \d of 4 are better", said)
    first, second = page.locator("#differences select").all()
    chosen = first.input_value(), second.input_value()
    first.select_option(chosen[1])
    page.locator("#differences select").nth(1).select_option(chosen[0])
    assert page.locator("#gain").inner_text() != said
    page.locator("#differences .chart").focus()
    page.keyboard.press("End")
    assert "difference" in page.locator("#differences .tooltip").inner_text()


def test_each_seed_shows_its_own_clients(page):
    page.locator("#federation select").select_option(label="seed 1")
    assert page.locator("#clients thead th").count() == 7, "one method alone has this seed"
    assert page.locator("#differences").inner_text() == ""


def test_a_cell_of_the_split_can_be_read(page):
    page.locator("#split .chart").focus()
    page.keyboard.press("ArrowRight")
    assert re.search(r"Client 0\s+\d+ training samples of 0", page.locator("#split .tooltip").inner_text())
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert re.search(r"Client 1\s+\d+ training samples of 1", page.locator("#split .tooltip").inner_text())


def test_dark_can_be_chosen_and_light_again(page):
    def ground():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.locator("#theme").click()
    assert ground() != light and page.locator("#theme").get_attribute("aria-label") == "Use light colours"
    page.locator("#theme").press("Enter")
    assert ground() == light


def test_the_recipe_can_be_copied(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the recipe").first.click()
    playwright.expect(page.get_by_role("button", name="Copy the recipe").first).to_have_text(re.compile("Copied|Selected"))
    assert "[method]" in page.get_by_label("config.toml").first.inner_text()
    page.get_by_role("button", name="Copy the command").first.click()
    assert "fedmrl run " in page.get_by_label("Command").first.inner_text()


def test_tab_reaches_every_part_and_shows_where_it_is(page):
    reached = reached_by_tab(page, 60, "querySelector('[id]')?.id")
    assert {"protocol", "curves-title", "clients-title", "split-title", "cost-title", "recipe-title"} <= reached

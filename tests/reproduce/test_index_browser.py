"""The page of a reproduction in a real browser: what is clicked, hovered and typed, with no error and no request."""

import re

import pytest
from browsing import browser, opening, reached_by_tab, size  # noqa: F401
from synthetic import all_cells

from fedmrl.reproduce.experiments import PAPER, QUICK
from fedmrl.reproduce.index import write_index


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The pages of a whole reproduction, of one that is under way, and of one that has not begun."""
    folder = tmp_path_factory.mktemp("pages")
    made = {"paper": (all_cells(PAPER), PAPER), "quick": (all_cells(QUICK), QUICK), "empty": ([], PAPER)}
    return {name: write_index(cells, scale, folder / name) for name, (cells, scale) in made.items()}


@pytest.fixture
def open_page(browser, reports, size):  # noqa: F811
    with opening(browser, size) as open_file:
        yield lambda name: open_file(reports[name])


@pytest.fixture
def page(open_page):
    tab = open_page("paper")
    tab.locator("#curves svg .line").first.wait_for(state="attached")
    return tab


def test_the_protocol_switch_changes_answer_cards_table_curves_and_costs(page):
    def shown():
        texts = [
            page.locator(part).inner_text() for part in ("#answer", "#protocol-says", "#cards", "#table", "#costs", "#sweeps")
        ]
        return (*texts, page.locator("#curves .line").first.get_attribute("d"))

    fair = shown()
    page.get_by_role("radio", name="paper").click()
    paper = shown()
    assert all(before != after for before, after in zip(fair, paper, strict=True))
    assert "(95.85)" in paper[3] and "(95.85)" not in fair[3], (
        "the paper's number stands beside ours only where both count alike"
    )
    page.get_by_role("radio", name="paper").focus()
    page.keyboard.press("ArrowLeft")
    own = shown()
    assert page.get_by_role("radio", name="own").is_checked() and own[1] not in (fair[1], paper[1])
    assert "copy of the shared part" in page.locator("#clients-says").inner_text()
    page.keyboard.press("ArrowLeft")
    assert shown() == fair


def test_the_table_can_be_of_clients_with_one_model(page):
    unlike = page.locator("#table").inner_text()
    page.get_by_role("radio", name="One model for all").click()
    assert page.locator("#table").inner_text() != unlike
    assert page.locator("#table .best").count() >= 6 and "failed" in page.locator("#table").inner_text()


def test_hovering_a_panel_shows_every_method_at_that_round(page):
    tooltip = page.locator("#curves .tooltip").nth(2)
    assert not tooltip.is_visible()
    page.locator("#curves .chart").nth(2).hover(position={"x": 120, "y": 100})
    assert re.match(r"Round \d+\n", tooltip.inner_text())
    assert "FedMRL" in tooltip.inner_text() and tooltip.inner_text().count("%") == 7, "all but FD, which diverged"
    page.mouse.move(0, 0)
    assert not tooltip.is_visible()


def test_the_arrow_keys_read_a_panel_a_client_and_a_sweep(page):
    for part, start in (("#curves", "Round 10"), ("#clients", "Client "), ("#sweeps", "classes per client = 2")):
        page.locator(f"{part} .chart").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.locator(f"{part} .tooltip").first.inner_text().startswith(start)
        assert page.locator(f"{part} [aria-live]").first.text_content().startswith(start)
        page.keyboard.press("Escape")
        assert not page.locator(f"{part} .tooltip").first.is_visible()


def test_a_legend_entry_hides_its_method_in_all_panels(page):
    entry = page.locator("#curves .legend button", has_text="FedProto")
    before = page.locator("#curves .line").count()
    entry.click()
    assert page.locator("#curves .line").count() == before - 6 and entry.get_attribute("aria-pressed") == "false"
    page.get_by_role("radio", name="paper").click()
    assert page.locator("#curves .line").count() == before - 6, "the switch does not bring it back"
    entry.press("Enter")
    assert page.locator("#curves .line").count() == before


def test_the_runs_can_be_sorted(page):
    def column(number):
        return [row.locator("th, td").nth(number).inner_text() for row in page.locator("#runs tbody tr").all()[:30]]

    head = page.locator("#runs thead th")
    assert head.nth(0).get_attribute("aria-sort") == "ascending"
    head.nth(1).get_by_role("button").click()
    accuracies = [float(text.split()[0]) for text in column(1)]
    assert accuracies == sorted(accuracies, reverse=True) and head.nth(1).get_attribute("aria-sort") == "descending"
    head.nth(1).get_by_role("button").press("Enter")
    assert column(1)[0] == "diverged", "the least of all"


def test_a_reproduction_under_way_says_what_is_not_measured(open_page):
    page = open_page("quick")
    assert "13 of 61 runs are measured" in page.locator(".facts").inner_text()
    assert "not measured" in page.locator("#curves").inner_text() and page.locator("#kind").count() == 0
    assert page.locator("#table td", has_text="not measured").count() > 0
    assert "fedmrl reproduce all --quick" in page.locator("#again").inner_text()


def test_the_verdicts_of_a_toy_are_grey_and_say_what_they_are_of(open_page):
    page = open_page("quick")
    texts = page.locator(".verdict").all_inner_texts()
    assert texts and all(text.startswith("in this small version") for text in texts)
    grounds = page.locator(".verdict").evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert set(grounds) == {"rgba(0, 0, 0, 0)"}


def test_a_reproduction_that_has_not_begun_has_a_page_too(open_page):
    page = open_page("empty")
    assert page.locator("#answer").inner_text() == "Too few runs to rank FedMRL"
    assert page.locator("section:visible").count() == 3, "the answer, how to measure it, and what words mean"
    page.get_by_role("radio", name="paper").click()


def test_dark_can_be_chosen(page):
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_tab_reaches_the_table_and_the_panels(page):
    reached = reached_by_tab(page, 45, "id")
    assert {"table-section", "curves-section", "clients-section", "costs-section", "sweeps-section"} <= reached


def test_the_contents_lead_to_every_section(open_page):
    for name in ("paper", "quick", "empty"):
        page = open_page(name)
        assert page.locator(".contents a").all_inner_texts() == page.locator("main section h2").all_inner_texts()


def test_nothing_that_is_written_is_cut(page):
    captions = page.locator(".axis-title, .hint, .says, .lead, .facts, h1, h2, h3, h4, .card p")
    cut = "all => all.filter(one => one.offsetParent && one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"
    assert captions.evaluate_all(cut) == []

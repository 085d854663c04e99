"""The Python of the README and of the pages in docs, run as it stands there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = {page: re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL) for page in PAGES}
WITH_PYTHON = [page for page, programs in PROGRAMS.items() if programs]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_as_it_stands(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for table in (ROOT / "examples" / "hospitals").glob("*.csv"):
        shutil.copy(table, tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for program in PROGRAMS[page]:
        exec(compile(program, page.name, "exec"), names)
        assert capsys.readouterr().out.strip()
    for folder in re.findall(r'out="(.*?)"', "".join(PROGRAMS[page])):
        assert (tmp_path / folder / "summary.json").is_file()
    for file in re.findall(r'(?m)^[^#]*?\.(?:export|report)\("(.*?)"', "".join(PROGRAMS[page])):
        assert (tmp_path / file).stat().st_size


ELSEWHERE = re.findall(
    r"```python elsewhere\n(.*?)```", (ROOT / "docs" / "your-model.md").read_text(encoding="utf-8"), re.DOTALL
)


def test_the_programs_for_another_machine_run_where_fedmrl_cannot_be_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for table in (ROOT / "examples" / "hospitals").glob("*.csv"):
        shutil.copy(table, tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(PROGRAMS[ROOT / "docs" / "your-model.md"][0], "your-model.md", "exec"), names)
    names["south"].export("south.onnx")
    names["south"].export("small.pt2", mode="single-small")
    assert len(ELSEWHERE) == 3
    for program in ELSEWHERE:
        without = f"import sys\nsys.modules['fedmrl'] = None\n{program}"
        done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_the_readme_and_the_pages_it_links_to_have_python():
    assert {page.name for page in WITH_PYTHON} >= {"README.md", "using.md", "your-data.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_the_readme_is_short():
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 120


def test_the_tests_that_the_page_on_data_names_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)", (ROOT / "docs" / "your-data.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    assert not [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")]

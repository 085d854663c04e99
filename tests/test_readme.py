"""The README's Python, run as it stands there."""

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readmes_python_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    for program in PROGRAMS:
        exec(compile(program, "README.md", "exec"), names)
        assert capsys.readouterr().out.strip()
    assert (tmp_path / "runs" / "mine" / "summary.json").is_file()

"""The recipes that come along, by name."""

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def known_recipes() -> dict[str, str]:
    """The recipes that come with fedmrl, by name, each with what it says of itself."""
    return {
        path.relative_to(FOLDER).with_suffix("").as_posix(): path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        for path in sorted(FOLDER.rglob("*.toml"), key=lambda path: (path.parent != FOLDER, _natural(path)))
    }


def _natural(path: Path) -> list[int | str]:
    """Numbers by their value: n50 before n100."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]

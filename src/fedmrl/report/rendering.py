"""Rendering: an HTML page from Jinja templates and data, in one file that needs nothing but a browser."""

import json
from collections.abc import Mapping
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedmrl import __version__
from fedmrl.report.looks import SHAPES
from fedmrl.results import Protocol

PROTOCOL_LABELS: Mapping[Protocol, Mapping[str, str]] = {
    "fair": {
        "label": "Fair: all clients",
        "says": "Every client, with the latest the server has; the last round counts. Nothing is picked by its result.",
    },
    "own": {
        "label": "Own copies",
        "says": "Every client, with the copy of the shared part that it trained last; the last round counts.",
    },
    "paper": {
        "label": "Paper: best round",
        "says": "Only the clients of the round, each with the model it has just trained; the best round counts, not the last.",
    },
}
"""The protocols as a page's switch has them."""

WITH: Mapping[Protocol, str] = {
    "fair": "with the latest the server has",
    "own": "with the copy of the shared part that it trained last",
}
"""Whose models count where all clients are looked at."""


def render(name: str, page: Mapping[str, Any], data: Mapping[str, Any], package: str = "fedmrl.report") -> str:
    """The page of the template `name`.html: the template gets `page`, and the script `name`.js gets `data`."""
    loader = ChoiceLoader([PackageLoader(package, "."), PackageLoader("fedmrl.report", ".")])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip

    def source(file: str) -> Markup:
        return Markup(loader.get_source(environment, file)[0])

    common = {"version": __version__, "protocols": PROTOCOL_LABELS, "with": WITH, "shapes": SHAPES}
    scripts = Markup("\n").join([source("charts.js"), source(f"{name}.js")])
    parts = {"style": source("page.css"), "script": scripts, "data": Markup(embedded({**data, "shapes": SHAPES}))}
    text = environment.get_template(f"{name}.html").render({**common, **page, **parts})
    return text.encode("utf-8", "replace").decode("utf-8")  # a file's name can hold bytes that are no text


def embedded(data: Any) -> str:
    """JSON that can stand in a script element: no text in it can end the element, or begin another.

    >>> embedded("</script><!--")
    '"\\\\u003c/script\\\\u003e\\\\u003c!--"'
    """
    plain = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return plain.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")

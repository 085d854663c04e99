"""Rendering of self-contained HTML pages from Jinja templates and data."""

import json
from collections.abc import Mapping
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedmrl import __version__
from fedmrl.report.styles import MARKER_PATHS
from fedmrl.results import PROTOCOLS, Protocol

MODEL_PHRASES: Mapping[Protocol, str] = {
    "fair": "with the server’s latest shared part",
    "own": "with the copy of the shared part that it trained last",
}
"""Which copy of the shared part all clients are evaluated with."""
CURVE_SENTENCES: Mapping[Protocol, str] = {
    **{protocol: f"Mean over all clients, each {says}." for protocol, says in MODEL_PHRASES.items()},
    "paper": "Mean over a round’s participants, each with the model it has just trained.",
}
"""What a curve of each protocol shows."""


def render(name: str, page: Mapping[str, Any], data: Mapping[str, Any], package: str = "fedmrl.report") -> str:
    """Renders the template `name`.html with the values of `page`; its script `name`.js gets `data`."""
    loader = ChoiceLoader([PackageLoader(package, "."), PackageLoader("fedmrl.report", ".")])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip

    def source(file: str) -> Markup:
        return Markup(loader.get_source(environment, file)[0])

    protocols = {protocol: says.replace("'", "’") for protocol, says in PROTOCOLS.items()}
    common = {"version": __version__, "protocols": protocols, "with": MODEL_PHRASES, "marker_paths": MARKER_PATHS}
    scripts = Markup("\n").join([source("charts.js"), source(f"{name}.js")])
    parts = {"style": source("page.css"), "script": scripts, "data": Markup(embedded({**data, "marker_paths": MARKER_PATHS}))}
    text = environment.get_template(f"{name}.html").render({**common, **page, **parts})
    return text.encode("utf-8", "replace").decode("utf-8")  # a file's name may not be valid Unicode


def embedded(data: Any) -> str:
    """JSON for a script element, escaped so that no text in it can end the element.

    >>> embedded("</script><!--")
    '"\\\\u003c/script\\\\u003e\\\\u003c!--"'
    """
    plain = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return plain.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")

"""The commands that show things: report, partition."""

from pathlib import Path
from typing import Annotated

import typer

from fedmrl.cli.options import AsJson, Imports, RecipeName, SettingsOption
from fedmrl.cli.terminal import notice, print_json, say
from fedmrl.errors import UserError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="folders of runs, or of comparisons"),
    ],
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="HTML file to write (default: report.html in the folder, or here if there are several)"),
    ] = None,
) -> None:
    """Write an HTML page about finished runs, side by side."""
    from fedmrl.report.page import write_page

    path = write_page(runs, out_file)
    say(f"Page: {path}   (open it in a browser)")


def leaves(recipe: RecipeName, settings: SettingsOption = None, imports: Imports = None, as_json: AsJson = False) -> None:
    """Show what leaves a client, and what stays."""
    import torch

    from fedmrl.cli import render
    from fedmrl.config import load_named
    from fedmrl.federation.leaves import leaves as sheet_of
    from fedmrl.federation.setup import prepare

    named = load_named(recipe, settings or [], imports=imports or [], on_notice=notice)
    sheet = sheet_of(prepare(named.recipe, torch.device("cpu")).terms)
    if sheet is None:
        name = named.recipe.method.name
        raise UserError(f"the method {name!r} does not declare what it sends; give its class upload_form and answer_form")
    if as_json:
        print_json(sheet.model_dump(mode="json"))
        return
    render.leaves(named, sheet)


def partition(
    recipe: RecipeName,
    settings: SettingsOption = None,
    imports: Imports = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="also write a figure to this .png, .svg or .pdf file")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the split: each client's training samples by class."""
    import numpy as np

    from fedmrl.cli import render
    from fedmrl.config import load_named
    from fedmrl.data import sources
    from fedmrl.data.partition import partition as deal
    from fedmrl.report.charts import HeatMap
    from fedmrl.report.figures import partition_figure

    if out_file is not None and out_file.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--out is {out_file}; name a .png, .svg or .pdf file")
    if out_file is not None and not out_file.parent.is_dir():
        raise UserError(f"--out is {out_file}, and there is no folder {out_file.parent}; make it first")
    named = load_named(recipe, settings or [], imports=imports or [], on_notice=notice)
    data = sources.load(named.recipe.data)
    splits = deal(named.recipe.partition, data, named.recipe.clients, named.recipe.seed)
    counts = [[np.bincount(data.y[part], minlength=len(data.classes)) for part in (s.train, s.test)] for s in splits]
    if as_json:
        rows = [{"client": k, "train": tr.tolist(), "test": te.tolist()} for k, (tr, te) in enumerate(counts)]
        print_json({"classes": list(data.classes), "clients": rows})
        return
    render.split(named, data, counts)
    if out_file is not None:
        training = np.array([train for train, _ in counts])
        partition_figure(HeatMap(training, data.classes), f"{named.name}: training samples by client and class", out_file)
        say(f"Figure: {out_file}")

"""The commands that take a trained model home: predict, export, modes."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmrl.cli.options import AsJson, Imports, check_parent
from fedmrl.cli.terminal import notice, print_json, print_text, say, show, table
from fedmrl.files import write_whole

if TYPE_CHECKING:
    from fedmrl.export import TrainedClient

Run = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run")]
Client = Annotated[int, typer.Option("--client", help="the client's number, from 0")]
Mode = Annotated[str | None, typer.Option("--mode", help="a mode of the method (default: the run's; see 'fedmrl modes')")]


def predict(
    run: Run,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="samples in the form in which the data was given")],
    client: Client,
    mode: Mode = None,
    imports: Imports = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="CSV file to write (default: standard output)")] = None,
) -> None:
    """Predict with a client's trained model."""
    check_parent(out_file, "--out")
    trained = _client(run, client, imports)
    scores = trained.scores(file, mode)
    best = scores.argmax(axis=1)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class", *(f"p({name})" for name in trained.classes)])
    for name, row in zip(trained.preparation.labels(best).tolist(), scores.tolist(), strict=True):
        writer.writerow([name, *(f"{value:.6g}" for value in row)])
    if out_file is None:
        print_text(text.getvalue())
    else:
        write_whole(out_file, text.getvalue())
        say(f"Predictions: {out_file} ({len(scores)} samples)")


def export(
    run: Run,
    client: Client,
    to: Annotated[Path, typer.Option("--to", help="file to write, ending in .onnx, .pt2 or .safetensors")],
    mode: Mode = None,
    imports: Imports = None,
) -> None:
    """Write a client's trained model to a file."""
    trained = _client(run, client, imports)
    path = trained.export(to, mode)
    say(f"Model: {path} ({path.stat().st_size:,} bytes; client {client}, mode {mode or trained.mode})")


def modes(run: Run, client: Client = 0, imports: Imports = None, as_json: AsJson = False) -> None:
    """Show the size and speed of each mode of a client."""
    from fedmrl.report.tables import amount

    trained = _client(run, client, imports)
    rows = trained.measure_modes()
    if as_json:
        print_json([row.model_dump() for row in rows])
        return
    made = table(f"{run}, client {client}", "mode", "accuracy", "parameters", "size", "compute", "time")
    for row in rows:
        accuracy = "–" if row.accuracy is None else f"{row.accuracy:.1%}"
        made.add_row(
            row.mode, accuracy, f"{row.parameters:,}", amount(row.bytes, "B"), amount(row.flops, "FLOP"),
            f"{row.milliseconds:.3g} ms",
        )  # fmt: skip
    show(made)
    say("accuracy on the client's test samples; time: median of single samples on this CPU, measured now")


def _client(run: Path, number: int, imports: list[str] | None) -> "TrainedClient":
    """A client of a finished run, once the classes that its recipe names are imported."""
    from fedmrl.config import load_named
    from fedmrl.results import RunResult

    result = RunResult.read(run)
    load_named(run, [], imports=imports or [], on_notice=notice)
    return result.client(number)

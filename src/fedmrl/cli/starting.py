"""The command that starts from the user's own data: init."""

from pathlib import Path
from typing import Annotated

import typer

from fedmrl.cli.options import Label, check_parent
from fedmrl.cli.terminal import notice, say
from fedmrl.errors import UserError
from fedmrl.files import write_whole


def init(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help=".npz, .csv, .parquet or a folder of images; several: one for each client"),
    ],
    label: Label = None,
    clients: Annotated[int | None, typer.Option(min=1, help="number of clients (default: up to 10)")] = None,
    size: Annotated[str | None, typer.Option(help="height x width to which images are scaled, such as 32x32")] = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="TOML file to write (default: the data's name, here)")] = None,
) -> None:
    """Look at your data and write a recipe that fits it."""
    import torch

    from fedmrl.config import load_recipe
    from fedmrl.config.starter import starter
    from fedmrl.data import Files, sources
    from fedmrl.federation.setup import prepare

    path = out_file or Path(f"{files[0].stem}.toml")
    check_parent(path, "--out")
    if path.exists():
        raise UserError(f"{path} exists already; name another file with --out, or remove it")
    source = Files(files=[str(file) for file in files], label=label, size=list(_size(size)) if size else None)
    data = sources.load(source)
    text = starter(data, files, path.parent, clients, _size(size) if size else None)
    for line in data.notices:
        notice(line)
    write_whole(path, text)
    try:
        prepare(load_recipe(path), torch.device("cpu"))
    except BaseException:
        path.unlink()
        raise
    say(f"Recipe: {path}   (try: fedmrl run {path})")


def _size(text: str) -> tuple[int, int]:
    try:
        height, width = (int(n) for n in text.lower().replace("×", "x").split("x"))
    except ValueError:
        raise UserError(f"--size is {text!r}; give height x width, such as 32x32") from None
    if not (1 <= height <= 4096 and 1 <= width <= 4096):
        raise UserError(f"--size is {text!r}; height and width must be 1 to 4096")
    return height, width

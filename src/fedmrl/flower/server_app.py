"""The Flower ServerApp: runs the federation whose name `flwr run` gives, in the folder of the server that started it."""

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the recipe or goes on with the run that the run configuration names."""
    from fedmrl.errors import UserError
    from fedmrl.flower.server_folder import FOLDER, ServerFolder
    from fedmrl.flower.serving import serve

    if FOLDER not in os.environ:
        raise UserError("the server was not started by 'fedmrl server start', so its folder is not known")
    serve(grid, ServerFolder.opened(Path(os.environ[FOLDER])), str(context.run_config["run"]), _tell)


def _tell(line: str) -> None:
    print(f"fedmrl: {line}", flush=True)  # noqa: T201  (Flower takes the run's log from standard output)

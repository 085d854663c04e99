"""A client's trained model: it predicts, and is written to files."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedmrl.errors import CODE_FAILS, UserCodeError, UserError, cause
from fedmrl.export.final_nets import FinalNets
from fedmrl.export.formats import write
from fedmrl.export.modes import MeasuredMode, measured
from fedmrl.export.predictor import Predictor
from fedmrl.files import output_path
from fedmrl.guard import is_ours
from fedmrl.methods import ClientNet
from fedmrl.models import OwnModel

_AT_ONCE = 128  # samples: with more, a layer's output does not fit into a CPU's cache


class TrainedClient:
    """A client's model after the last round, with the server's last shared part."""

    def __init__(self, nets: FinalNets, number: int, mode: str, accuracies: Mapping[str, float]) -> None:
        """`mode` is the run's headline mode, and `accuracies` has the client's accuracy in each mode."""
        self.number, self.mode, self._nets, self._accuracies = number, mode, nets, accuracies
        self.preparation = nets.preparation
        """How raw samples become what the net is fed, and what its classes are called."""
        self._predictors: dict[str, Predictor] = {}

    def __repr__(self) -> str:
        return f"TrainedClient({self.number}, {self._nets.models[self.number].label!r}, modes {', '.join(self.modes)})"

    @property
    def modes(self) -> tuple[str, ...]:
        """The ways to predict, the method's default first."""
        return self._nets.terms.method.modes

    @property
    def classes(self) -> list[Any]:
        """The classes as they came with the data, in the order of `scores`."""
        return list(self.preparation.classes)

    def predict(self, x: Any, mode: str | None = None) -> NDArray[Any]:
        """The class of each sample, as it came with the data."""
        return self.preparation.labels(self.scores(x, mode).argmax(axis=1))

    def scores(self, x: Any, mode: str | None = None) -> NDArray[np.float32]:
        """A probability for each sample and class, in the order of `classes`.

        `x` are raw samples in the form in which the data was given.
        """
        module, raw = self.module(mode), self.preparation.features(x)
        with torch.inference_mode(), self._told():
            batches = [module(torch.from_numpy(raw[at : at + _AT_ONCE])) for at in range(0, len(raw), _AT_ONCE)]
        found: NDArray[np.float32] = torch.cat(batches).numpy() if batches else np.empty((0, len(self.classes)), np.float32)
        return found

    def module(self, mode: str | None = None) -> Predictor:
        """The model as a torch module: raw samples in, a probability for each class out."""
        mode = self.mode if mode is None else mode
        if mode not in self.modes:
            raise UserError(f"mode is {mode!r:.80}; this model has {', '.join(self.modes)}")
        if mode not in self._predictors:
            self._predictors[mode] = Predictor(self._net, self._nets.terms.method, mode, self.preparation)
        return self._predictors[mode]

    def export(self, path: str | Path, mode: str | None = None) -> Path:
        """Writes the model to a .onnx, .pt2 or .safetensors file, which is read without fedmrl and without pickle."""
        target = output_path(path, "path")
        module = self.module(mode)
        write(module, self._net, target, self._metadata(module))
        return target

    def measure_modes(self) -> list[MeasuredMode]:
        """Each mode's accuracy on the client's test samples, size and FLOPs, and its time for one sample, measured now.

        The accuracy is None for a client of a federation, whose folder has none.
        """
        return [measured(self.module(mode), self._accuracies.get(mode)) for mode in self.modes]

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A context in which a failure of the user's own models becomes a sentence; fedmrl's own keep their tracebacks."""
        specs = (self._nets.models[self.number], self._nets.terms.common.small)
        try:
            yield
        except CODE_FAILS as error:
            own = any(isinstance(spec, OwnModel) or not is_ours(type(spec)) for spec in specs)
            if not own or isinstance(error, UserError | MemoryError | torch.OutOfMemoryError):
                raise
            raise UserCodeError(
                f"client {self.number}'s model {specs[0].label!r} fails on the input ({cause(error)}); give samples such as it "
                "was trained on"
            ) from error

    @cached_property
    def _net(self) -> ClientNet:
        return self._nets.net(self.number)

    def _metadata(self, module: Predictor) -> dict[str, Any]:
        about: dict[str, Any] = {"method": self._nets.terms.method.name, "mode": module.mode}
        if "local" in module.parts:  # otherwise the file has nothing of the client's own model, not even its name
            about |= {"client": self.number, "model": self._nets.models[self.number].label}
        return about | self.preparation.plain()

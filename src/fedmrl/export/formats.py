"""Files that a predictor is written to; reading them needs neither fedmrl nor pickle."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import Tensor

from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.export.predictor import Predictor, plain_names
from fedmrl.files import replacing
from fedmrl.methods import ClientNet

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_INPUT, _OUTPUT, _BATCH = "x", "probabilities", "batch"
_SAME = 1e-5  # how far a file's probabilities may be from the predictor's
_LARGEST_ONNX = 2**31  # bytes of a file in one piece, by its format

Metadata = Mapping[str, Any]
"""What a file says of the model that it holds, as plain data."""


def write(predictor: Predictor, net: ClientNet, path: Path, metadata: Metadata) -> None:
    """Writes a predictor in the format that the path's suffix names, after checking its numbers; `net` is the whole net."""
    if path.suffix not in FORMATS:
        *some, last = FORMATS
        raise UserError(f"{path} cannot be written: end its name in {', '.join(some)} or {last}")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{path} cannot be written; name a file in an existing folder")
    content = FORMATS[path.suffix](predictor, net, metadata)
    with replacing(path) as part:
        part.write_bytes(content)


def _onnx(predictor: Predictor, _: ClientNet, metadata: Metadata) -> bytes:
    """The predictor in ONNX; each entry of the metadata is a property, as JSON."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as error:
        raise UserError(
            f"a .onnx file needs the package {error.name}; install it with: pip install 'fedmrl[export]'; the other formats "
            "need none"
        ) from error
    program = _program(predictor)
    with _told(predictor, "ONNX"), _quietly():
        made = torch.onnx.export(program, dynamo=True, input_names=[_INPUT], output_names=[_OUTPUT], verbose=False)
        assert made is not None
        for node in made.model.graph.all_nodes():
            node.metadata_props.clear()
        made.model.metadata_props.update({name: json.dumps(value) for name, value in metadata.items()})
        weights = sum(tensor.numel() * tensor.element_size() for tensor in predictor.state_dict().values())
        if weights >= _LARGEST_ONNX:
            raise UserError("a .onnx file holds at most 2 GiB; write .pt2 or .safetensors")
        content: bytes = made.model_proto.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    _check(predictor, "ONNX", lambda x: torch.from_numpy(session.run([_OUTPUT], {_INPUT: x.numpy()})[0]))
    return content


def _pt2(predictor: Predictor, _: ClientNet, metadata: Metadata) -> bytes:
    """The predictor as torch's exported program, with the metadata as `metadata.json` beside it."""
    program = _program(predictor)
    _check(predictor, "torch.export", program.module())
    program._example_inputs = None  # torch would pickle them
    file = io.BytesIO()
    with _told(predictor, "torch.export"), _quietly():
        torch.export.save(program, file, extra_files={"metadata.json": json.dumps(metadata)})
    return file.getvalue()


def _safetensors(predictor: Predictor, net: ClientNet, metadata: Metadata) -> bytes:
    """The weights by their plain names; each entry of the metadata is JSON."""
    # One part is written whole, so that it loads into the user's own module; of several, only what the mode uses.
    state = plain_names(net if len(predictor.parts) == 1 else predictor.net, predictor.parts)
    return save(state, {name: json.dumps(value) for name, value in metadata.items()})


FORMATS: Mapping[str, Callable[[Predictor, ClientNet, Metadata], bytes]] = {
    ".onnx": _onnx,
    ".pt2": _pt2,
    ".safetensors": _safetensors,
}
"""The content of a file, by its suffix."""


def _program(predictor: Predictor) -> "ExportedProgram":
    """The predictor as a graph for batches of any size."""
    from torch.export import Dim, export  # loading it takes a second

    with _told(predictor, "torch.export"), _quietly():
        program = export(predictor, (predictor.random_samples(2),), dynamic_shapes=({0: Dim(_BATCH)},))
    for node in program.graph.nodes:  # the model's source code and its place on this machine stay here
        for name in ("stack_trace", "nn_module_stack", "source_fn_stack"):
            node.meta.pop(name, None)
    return program


def _check(predictor: Predictor, what: str, run: Callable[[Tensor], Tensor]) -> None:
    """Raises `UserError` unless what was exported gives the predictor's probabilities, also for other sizes of batches."""
    for count in (1, 3):
        x = predictor.random_samples(count)
        with torch.no_grad(), _told(predictor, what):
            found, expected = run(x), predictor(x)
        if found.shape != expected.shape or not torch.allclose(found, expected, rtol=0, atol=_SAME):
            raise UserError(
                f"mode {predictor.mode!r} cannot be exported: {what} gives other numbers than the model itself; write "
                ".safetensors, which has the weights only"
            )


@contextmanager
def _told(predictor: Predictor, what: str) -> Iterator[None]:
    """A context in which a model that cannot be exported becomes a sentence."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except CODE_FAILS as error:
        raise UserError(
            f"mode {predictor.mode!r} cannot be exported: {what} does not support the model ({cause(error)}); write "
            ".safetensors, which has the weights only"
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """A context without the warnings and notices of torch's exporters, which are about torch itself."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)

"""Timing of the stages of a round."""

import time

import torch


class Stopwatch:
    """Times stages; on a GPU by CUDA events, because kernels run asynchronously.

    >>> watch = Stopwatch(torch.device("cpu"))
    >>> watch.passed("train")
    >>> list(watch.seconds())
    ['train']
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stages: list[str] = []
        self._marks = [self._mark()]

    def passed(self, stage: str) -> None:
        """Marks the end of a stage."""
        self._stages.append(stage)
        self._marks.append(self._mark())

    def seconds(self) -> dict[str, float]:
        """The seconds of each stage; waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return {
            stage: _between(start, end) for stage, start, end in zip(self._stages, self._marks, self._marks[1:], strict=False)
        }

    def _mark(self) -> "float | torch.cuda.Event":
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _between(start: "float | torch.cuda.Event", end: "float | torch.cuda.Event") -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    return start.elapsed_time(end) / 1000  # type: ignore[union-attr, arg-type, no-any-return]

"""How long the stages of a round take."""

import time

import torch


class Stopwatch:
    """Times stages where the work is done: on a GPU, which is told what to do long before it does it, by its own clock.

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
        """The stage ends here."""
        self._stages.append(stage)
        self._marks.append(self._mark())

    def seconds(self) -> dict[str, float]:
        """Of each stage; this waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return {
            stage: _between(one, other) for stage, one, other in zip(self._stages, self._marks, self._marks[1:], strict=False)
        }

    def _mark(self) -> "float | torch.cuda.Event":
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _between(one: "float | torch.cuda.Event", other: "float | torch.cuda.Event") -> float:
    if isinstance(one, float) and isinstance(other, float):
        return other - one
    return one.elapsed_time(other) / 1000  # type: ignore[union-attr, arg-type, no-any-return]

"""What each mode of a client's net costs and how accurate it is."""

import statistics
import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedmrl.export.predictor import Predictor, used_tensors
from fedmrl.schema import Part

_TIMED = 50  # predictions, of which the median counts
_WARMUP = 5


class MeasuredMode(Part):
    """A way to predict: its accuracy, and the cost of one prediction."""

    mode: str
    accuracy: float | None
    """On the client's test samples; None if it was not measured."""
    parameters: int
    """The numbers that a prediction reads: weights, and what the net keeps of messages."""
    bytes: int
    """Their size, with 32-bit weights."""
    flops: int
    """Of one sample, by torch's counter."""
    milliseconds: float
    """The median time of one sample on this machine's CPU."""


def measured(predictor: Predictor, accuracy: float | None) -> MeasuredMode:
    """Measures a mode."""
    tensors = used_tensors(predictor).values()
    x = predictor.random_samples(1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        predictor(x)
    times = []
    with torch.inference_mode():
        for _ in range(_WARMUP + _TIMED):
            begun = time.perf_counter()
            predictor(x)
            times.append(time.perf_counter() - begun)
    return MeasuredMode(
        mode=predictor.mode,
        accuracy=accuracy,
        parameters=sum(tensor.numel() for tensor in tensors),
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        flops=counter.get_total_flops(),
        milliseconds=1000 * statistics.median(times[_WARMUP:]),
    )

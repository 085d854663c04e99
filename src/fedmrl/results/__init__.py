"""Results of runs, as types that are returned, written and read back."""

from fedmrl.results.accuracy import WHOSE, Accuracy, ByMode, ByView, LastAndBest, Means, RoundAccuracy, Scores, View, Whose
from fedmrl.results.costs import Target, cost_to_target
from fedmrl.results.leaves import Leaves, TensorOut
from fedmrl.results.protocols import PROTOCOLS, Protocol, counted
from fedmrl.results.record import LeftOut, Record, Traffic, curve, read_records
from fedmrl.results.result import (
    ClientResult,
    ClientResults,
    Communication,
    DivergedRun,
    Divergence,
    Outcome,
    PrivacySpent,
    RunResult,
    check_files,
    ended,
    last_and_best,
    read_outcome,
    read_summary,
    split_digest,
)

__all__ = [
    "PROTOCOLS",
    "WHOSE",
    "Accuracy",
    "ByMode",
    "ByView",
    "ClientResult",
    "ClientResults",
    "Communication",
    "DivergedRun",
    "Divergence",
    "LastAndBest",
    "Leaves",
    "LeftOut",
    "Means",
    "Outcome",
    "PrivacySpent",
    "Protocol",
    "Record",
    "RoundAccuracy",
    "RunResult",
    "Scores",
    "Target",
    "TensorOut",
    "Traffic",
    "View",
    "Whose",
    "check_files",
    "cost_to_target",
    "counted",
    "curve",
    "ended",
    "last_and_best",
    "read_outcome",
    "read_records",
    "read_summary",
    "split_digest",
]

"""Tables and text: does FedMRL gain over training alone where data is not images?

Tabular: scikit-learn's breast cancer samples at ten hospitals, with four kinds of network. Text: from which part of
scikit-learn does a sentence of its documentation come, at ten clients with networks of two kinds. Both need no network
connection. The settings are the same for both methods and were not searched. Writes results/yours/: a figure and the
numbers of each.
"""

import importlib
import inspect
import json
import pkgutil
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import fedmrl
from fedmrl.report.tables import finished_results

OUT = Path("results/yours")
SEEDS = [0, 1, 2]
PARTS = (
    "cluster",
    "decomposition",
    "ensemble",
    "feature_extraction",
    "linear_model",
    "metrics",
    "model_selection",
    "preprocessing",
)
SENTENCES, LENGTH = 3000, 24  # drawn at random, and the words of one that count
RAREST = 3  # how often a word must occur to have a token of its own


def hospitals() -> pd.DataFrame:
    """569 patients with 30 measurements and their diagnosis."""
    frame = load_breast_cancer(as_frame=True).frame
    frame["diagnosis"] = np.where(frame.pop("target") == 1, "benign", "malignant")
    return frame


def mlp(*widths: int) -> nn.Sequential:
    """A network for 30 measurements."""
    layers: list[nn.Module] = []
    for before, width in zip((30, *widths), widths, strict=False):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 2))


def sentences() -> tuple[np.ndarray, np.ndarray, int]:
    """Sentences as tokens, the part of scikit-learn from which each comes, and the size of the vocabulary."""
    found: dict[str, str | None] = {}
    for part in PARTS:
        package = importlib.import_module(f"sklearn.{part}")
        for module in [
            part,
            *(f"{part}.{info.name}" for info in pkgutil.iter_modules(package.__path__) if "test" not in info.name),
        ]:
            for _, thing in inspect.getmembers(importlib.import_module(f"sklearn.{module}")):
                if not (inspect.isclass(thing) or inspect.isfunction(thing)) or not thing.__module__.startswith(
                    f"sklearn.{part}"
                ):
                    continue
                members = [thing, *(own for _, own in inspect.getmembers(thing, inspect.isfunction))]
                texts = " ".join(inspect.getdoc(own) or "" for own in members if own.__module__.startswith(f"sklearn.{part}"))
                for sentence in re.split(r"[.\n]\s*\n|\.\s", texts):
                    words = " ".join(re.findall(r"[a-z]+", sentence.lower().replace(part, "")))
                    if len(words.split()) >= 6:  # one that several parts have belongs to none
                        found[words] = part if found.get(words, part) == part else None
    sentences = sorted(words for words, part in found.items() if part)
    chosen = [sentences[place] for place in np.random.default_rng(0).choice(len(sentences), SENTENCES, replace=False)]
    counts = Counter(word for text in chosen for word in text.split())
    known = {word: token for token, word in enumerate(sorted(w for w, n in counts.items() if n >= RAREST), start=2)}
    rows = [[known.get(word, 1) for word in text.split()[:LENGTH]] for text in chosen]
    x = np.array([row + [0] * (LENGTH - len(row)) for row in rows], dtype=np.int64)
    return x, np.array([found[text] for text in chosen]), len(known) + 2


class Bag(nn.Module):
    """The mean of word vectors, then two layers."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding, self.hidden, self.last = nn.Embedding(words, 32), nn.Linear(32, width), nn.Linear(width, len(PARTS))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.last(torch.relu(self.hidden(self.embedding(x).mean(dim=1))))
        return logits


class Convolution(nn.Module):
    """Convolutions over three words, and the largest of each channel."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding, self.conv, self.last = nn.Embedding(words, 32), nn.Conv1d(32, width, 3), nn.Linear(width, len(PARTS))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.last(torch.relu(self.conv(self.embedding(x).transpose(1, 2))).amax(dim=-1))
        return logits


def measured(name: str, title: str, made: fedmrl.Comparison, about: dict[str, Any]) -> None:
    """Writes a figure and the numbers of a comparison."""
    made.figure(OUT / f"{name}.png")
    methods = {
        method: {
            protocol: [round(100 * run.headline(protocol), 2) for run in finished_results(made[method])]
            for protocol in ("fair", "own")
        }
        for method in made.outcomes
    }
    text = json.dumps({"title": title, **about, "seeds": SEEDS, "accuracy in percent": methods}, indent=2)
    (OUT / f"{name}.json").write_text(text + "\n")
    print(text)


def main() -> None:
    """Measures both."""
    OUT.mkdir(parents=True, exist_ok=True)
    common: dict[str, Any] = {"seeds": SEEDS, "clients": 10, "participation": 1.0, "keep": False}
    training = {"lr": 0.05, "momentum": 0.9, "batch_size": 8, "epochs": 2}
    patients = hospitals()
    made = fedmrl.compare(
        "quickstart", [fedmrl.FedMRL(d1=8), "standalone"], data=patients, label="diagnosis",
        models=[lambda: mlp(64, 32), lambda: mlp(32), lambda: mlp(48, 24, 16), lambda: mlp(16)], rounds=20, training=training,
        partition={"kind": "dirichlet", "alpha": 0.5}, evaluation={"every": 1}, title="breast cancer, 10 hospitals", **common,
    )  # fmt: skip
    measured("tabular", "breast cancer, 10 hospitals", made, {"samples": len(patients), "training": training})
    x, y, words = sentences()
    made = fedmrl.compare(
        "quickstart", [fedmrl.FedMRL(d1=16), "standalone"], data=(x, y), rounds=20, training=training,
        models=[lambda: Bag(words, 48), lambda: Convolution(words, 64), lambda: Bag(words, 24)],
        small={"name": "text", "vocabulary": words, "embedding": 32, "hidden": [16]}, evaluation={"every": 1},
        partition={"kind": "dirichlet", "alpha": 0.5}, title="sentences of scikit-learn, 10 clients", **common,
    )  # fmt: skip
    about = {"scikit-learn": sklearn.__version__, "sentences": len(x), "words": words, "training": training}
    measured("text", "sentences of scikit-learn, 10 clients", made, about)


if __name__ == "__main__":
    main()

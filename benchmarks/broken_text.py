"""Find broken sentences of a corpus by the scores of a run, compared with word rarity: AUC and precision at the top.

    python benchmarks/broken_text.py runs/reformer_small/TIME [--sentences 1000]

Sentences of the run's held-out documents; a tenth of them are damaged in one of four ways.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

import electra_lab

OCR = {"rn": "m", "m": "rn", "l": "1", "o": "0", "e": "c", "cl": "d", "h": "b", "ii": "n"}
ENDINGS = {"ing": "ed", "ed": "ing", "s": "", "ly": "", "tion": "ting"}


def swapped(words: list[str], rng: random.Random) -> list[str]:
    """Two neighbours change places."""
    at = rng.randrange(len(words) - 1)
    return [*words[:at], words[at + 1], words[at], *words[at + 2 :]]


def inflected(words: list[str], rng: random.Random) -> list[str]:
    """A word has a wrong ending."""
    places = [at for at, word in enumerate(words) if word.isalpha() and len(word) > 3]
    if not places:
        return words
    at = rng.choice(places)
    ending = next((ending for ending in ENDINGS if words[at].endswith(ending)), "")
    changed = words[at].removesuffix(ending) + ENDINGS[ending] if ending else words[at] + "s"
    return [*words[:at], changed, *words[at + 1 :]]


def misread(words: list[str], rng: random.Random) -> list[str]:
    """Two words are read wrongly, as by optical character recognition."""
    found = [*words]
    places = [at for at, word in enumerate(words) if any(part in word for part in OCR)]
    for at in rng.sample(places, min(2, len(places))):
        part = rng.choice([part for part in OCR if part in found[at]])
        found[at] = found[at].replace(part, OCR[part], 1)
    return found


def replaced(words: list[str], rng: random.Random) -> list[str]:
    """A word is replaced by another word of the sentence."""
    at, other = rng.sample(range(len(words)), 2)
    return [*words[:at], words[other], *words[at + 1 :]]


DAMAGE: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "swapped words": swapped, "wrong ending": inflected, "OCR errors": misread, "repeated word": replaced,
}  # fmt: skip


def auc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    ranks, label = rankdata(scores), np.array(labels)
    positive = label.sum()
    return float((ranks[label].sum() - positive * (positive + 1) / 2) / (positive * (~label).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--sentences", type=int, default=1000)
    args = parser.parse_args()
    pair, rng = electra_lab.load(args.run, device="cpu"), random.Random(0)
    sentences = set[str]()
    for text in electra_lab.held_out(args.run):
        found = re.findall(r"[A-Z][a-z ,'-]{30,200}[.]", text.replace("\n", " "))
        sentences |= {" ".join(sentence.split()) for sentence in found}
    whole = rng.sample(sorted(sentences), min(args.sentences, len(sentences)))
    counts = pair.vocabulary.counts.double() + 1
    rarity = -(counts / counts.sum()).log()

    def rare(texts: list[str]) -> list[float]:
        return [float(rarity[pair.tokenizer.encode(text).ids].mean()) for text in texts]

    def scored(by: Any, reduce: Any) -> Callable[[list[str]], list[float]]:
        return lambda texts: [found.score or 0.0 for found in pair.score(texts, by=by, reduce=reduce)]

    measures: dict[str, Callable[[list[str]], list[float]]] = {"word rarity": rare}
    for by in ("detection", "likelihood"):
        for reduce in ("mean", "max"):
            measures[f"{by}, {reduce}"] = scored(by, reduce)
    print(f"{len(whole):,} sentences, {len(whole) // 10} of them damaged")
    print("| damage | " + " | ".join(f"{name}: AUC, precision at {len(whole) // 10}" for name in measures) + " |")
    print("|---" * (len(measures) + 1) + "|")
    for kind, damage in DAMAGE.items():
        texts, labels = [], []
        for number, sentence in enumerate(whole):
            broken = number % 10 == 0
            words = damage(sentence.split(), rng) if broken else sentence.split()
            broken &= " ".join(words) != sentence
            texts.append(" ".join(words))
            labels.append(broken)
        cells = []
        for measure in measures.values():
            scores = measure(texts)
            top = np.argsort(scores)[::-1][: sum(labels)]
            cells.append(f"{auc(scores, labels):.3f}, {np.array(labels)[top].mean():.2f}")
        print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

"""A synthetic genome with motifs and a repeat, and the best AUC that any detector can have on it.

`python genome.py` prints the AUC of the exact posterior P(replaced | row) for the settings of dna_small.yaml:
replacements are drawn from letter frequencies, so a row is the output of a hidden Markov model that is known here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from registry import Document, corpora

LETTERS = "ACGT"
MOTIFS = ("TATAAAGGCCGG", "CCAATCTTGACA", "ACGTGGATTACAGGCATGAGCCACCGCGCCTGGCC")  # the last one is a repeat
BEGIN = 1 / 60  # chance that a motif begins at a letter outside of them
STAY = (
    np.array([[4, 1, 2, 3], [3, 3, 1, 3], [2, 3, 4, 1], [1, 3, 3, 3]]) / 10
)  # the next letter outside, by the last one


def chain() -> tuple[np.ndarray, np.ndarray]:
    """Return the transitions between states and the letter of each: four outside, then those of the motifs."""
    emitted = [0, 1, 2, 3]
    for motif in MOTIFS:
        emitted += [LETTERS.index(letter) for letter in motif]
    moves = np.zeros((len(emitted), len(emitted)))
    moves[:4, :4], first = STAY * (1 - BEGIN), 4
    for motif in MOTIFS:
        moves[:4, first] = BEGIN / len(MOTIFS)
        for state in range(first, first + len(motif) - 1):
            moves[state, state + 1] = 1
        moves[first + len(motif) - 1, :4] = 1 / 4
        first += len(motif)
    return moves, np.array(emitted)


def sequence(rng: np.random.Generator, length: int) -> str:
    moves, emitted = chain()
    sums, state, states = moves.cumsum(1), 0, []
    for luck in rng.random(length):
        state = min(int(np.searchsorted(sums[state], luck, side="right")), len(moves) - 1)
        states.append(state)
    return "".join(LETTERS[letter] for letter in emitted[states])


@corpora.register("genome")
class Genome:
    """Chromosomes of the genome; the windows of one are in the same split.

    chromosomes  number of them
    length       letters of each
    """

    def __init__(
        self, /, *, chromosomes: Annotated[int, Field(ge=3, le=10_000)] = 600,
        length: Annotated[int, Field(ge=1000, le=1_000_000)] = 2_000, seed: int = 0,
    ) -> None:  # fmt: skip
        self.chromosomes, self.length, self.seed = chromosomes, length, seed

    def __iter__(self) -> Iterator[Document]:
        for number in range(self.chromosomes):
            text = sequence(np.random.default_rng([self.seed, number]), self.length)
            yield Document(text, f"chromosome {number}")

    def fingerprint(self) -> str:
        return hashlib.sha256("".join(document.text for document in self).encode()).hexdigest()


def best_auc(rows: int = 400, length: int = 126, masked: float = 0.15, replaced: float = 1.0) -> float:
    """Return the AUC of the exact posterior over rows of a length, by the forward-backward algorithm."""
    from scipy.stats import rankdata

    rng, (moves, emitted) = np.random.default_rng(0), chain()
    whole = [LETTERS.index(letter) for letter in sequence(rng, rows * length)]
    frequencies, share = np.bincount(whole, minlength=4) / len(whole), masked * replaced
    start = np.linalg.matrix_power(moves, 1000)[0]  # of a row anywhere in the genome
    scores, labels = [], []
    for original in np.array(whole).reshape(rows, length):
        drawn = rng.random(length) < share
        seen = np.where(drawn, rng.choice(4, length, p=frequencies), original)
        kept = emitted == seen[:, None]  # [length, states]: the state has the letter that is seen
        chance = share * frequencies[seen][:, None] + (1 - share) * kept
        forward, backward = np.zeros((length, len(moves))), np.ones((length, len(moves)))
        for at in range(length):
            forward[at] = (start if at == 0 else forward[at - 1] @ moves) * chance[at]
            forward[at] /= forward[at].sum()
        for at in range(length - 2, -1, -1):
            backward[at] = moves @ (backward[at + 1] * chance[at + 1])
            backward[at] /= backward[at].sum()
        posterior = forward * backward
        scores.append((posterior * ~kept).sum(1) / posterior.sum(1))  # the true letter is another one
        labels.append(seen != original)
    rank, label = rankdata(np.concatenate(scores)), np.concatenate(labels)
    positive = label.sum()
    return float((rank[label].sum() - positive * (positive + 1) / 2) / (positive * (len(label) - positive)))


if __name__ == "__main__":
    print(f"best AUC {best_auc():.4f}")

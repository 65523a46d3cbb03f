"""A generator that guesses at random."""

from electra_lab.generators.unigram import Unigram
from registry import Vocabulary, generators


@generators.register("uniform", cloze=True)
class Uniform(Unigram):
    """Draw replacements uniformly from the ordinary tokens (`uniform_generator` of google-research/electra)."""

    def __init__(self, vocabulary: Vocabulary, /) -> None:
        super().__init__(vocabulary, power=0.0)

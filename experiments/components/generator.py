"""A generator."""

from typing import Annotated

from pydantic import Field

from registry import Vocabulary, generators


@generators.register("my_generator", cloze=True)
class MyGenerator(generators.get("unigram").component):  # type: ignore[misc]  # known at run time only
    """As `unigram`, from flattened frequencies.

    power  of the frequencies: 1 keeps them, 0 makes all tokens equally likely
    """

    def __init__(self, vocabulary: Vocabulary, /, *, power: Annotated[float, Field(ge=0, le=1)] = 0.5) -> None:
        super().__init__(vocabulary, power=power)

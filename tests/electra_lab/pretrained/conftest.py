"""A pair trained for a few steps, and a model saved by transformers."""

from pathlib import Path

import pytest
from tokenizers import processors
from transformers import ElectraForPreTraining, PreTrainedTokenizerFast

from electra_lab.tokenizers.wordpiece import wordpiece
from tests.electra_lab.inference.conftest import pair, run_directory
from tests.electra_lab.model.theirs import model, saved

__all__ = ["folder", "pair", "run_directory"]

DOCUMENTS = [f"the cat number {n} sat on the mat and saw {n + 1} dogs" for n in range(40)]
SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    made = wordpiece(DOCUMENTS, vocab_size=150)
    ends = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=made, **SPECIAL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights and the config of an ELECTRA. Tests must not change it."""
    return saved(model(ElectraForPreTraining), tmp_path_factory.mktemp("model"))

import pytest

from registry import tokenizers
from registry.contracts.data import SPECIAL_TOKENS

TEXT = "The old cat, the mat; and a café."


@pytest.fixture
def tokenizer():
    return tokenizers.get("my_tokenizer").component([TEXT, "the cat"])


def test_it_has_the_special_tokens(tokenizer):
    for role, names in SPECIAL_TOKENS.items():
        assert any(tokenizer.token_to_id(name) is not None for name in names), role


def test_offsets_are_parts_of_the_text_in_order(tokenizer):
    encoded = tokenizer.encode(TEXT)
    ends = [0, *(end for _, end in encoded.offsets)]
    assert all(begin >= before for before, (begin, _) in zip(ends, encoded.offsets, strict=False))
    assert "".join(TEXT[begin:end] for begin, end in encoded.offsets) == TEXT.replace(" ", "")


def test_the_same_documents_give_the_same_tokenizer(tokenizer):
    assert tokenizers.get("my_tokenizer").component([TEXT, "the cat"]).to_str() == tokenizer.to_str()

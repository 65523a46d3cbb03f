"""The special tokens of every tokenizer of the lab, with the ids 0 to 4."""

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

"""The special tokens that every tokenizer of the lab has; those trained here give them the ids 0 to 4."""

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

"""Write the models of tests/data/sentencepiece, and texts split by the sentencepiece library.

    pip install sentencepiece protobuf && python -m tests.electra_lab.tokenizers.make_sentencepiece

They are trained on the pages of docs/. expected.json has texts, their ids, and the ends of tokens in the first PROSE.
"""

import io
import json
import os
import random
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "data" / "sentencepiece"
SCRIPTS = [
    "Straße über café naïve",
    "Привет, мир",
    "日本語の文章です。",
    "한국어 배우기",
    "हिन्दी भाषा",
    "مرحبا بالعالم",
    "\u2603",
]
# Normal forms for a model, fewer than those of nmt_nfkc, which would take 240 kB of each file.
FORMS = {"\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\u00a0": " ", "\u00ad": "", "ﬁ": "fi", "½": "1\u20442",
         "Ａ": "A", "e\u0301": "é", "\x07": "", "e\u0323": "ẹ", "e\u0302": "ê", "e\u0323\u0302": "ệ", "ﾞ": "\u3099",
         "ｶ": "カ", "カ\u3099": "ガ", "ｶﾞ": "ガ", "\u1100\u1161": "가", "\u1100\u1161\u11a8": "각", "ㄱ": "\u1100",
         "ㅏ": "\u1161", "ㄱㅏ": "가", "\u0bc6\u0bbe": "\u0bca"}  # fmt: skip
DEBERTA = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
           "eos_piece": "[SEP]", "unk_piece": "[UNK]"}  # fmt: skip
SYMBOLS = {
    "control_symbols": ["<2en>"],
    "user_defined_symbols": ["<sym>", "::", "<mask>", "<sep>", "ﬁx", "<a b>", "<sym>x"],
}
MODELS: dict[str, dict[str, Any]] = {
    "deberta": {"model_type": "unigram", **DEBERTA},
    "unigram": {"model_type": "unigram", "byte_fallback": True, "split_by_whitespace": False, **SYMBOLS},
    "bpe": {"model_type": "bpe"},
    "bpe_symbols": {"model_type": "bpe", "add_dummy_prefix": False, **SYMBOLS},
    "char": {"model_type": "char", "remove_extra_whitespaces": False, **SYMBOLS},
    "bpe_spaces": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
                   "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True},
}  # fmt: skip
PROSE = 40  # texts from docs/
ODD = [
    "", " ", "  two  spaces  ", " two  spaces  ", "two  spaces  ", "a\tb\nc\r\n", "\u3000x\u00a0 y",
    "\x07 a", "so\u00adft", "\u2581a \u2581 b\u2581", "\ufb01ne \u00bd \uff21", "cafe\u0301 caf\u00e9",
    "x\u2603\u2603 \u2603", "\U0001f408 sat", "<s>x</s>", "[CLS] a[SEP] [PAD]", "<unk>", "[UNK] [MASK]", "<0x0A><0xC3>",
    "x<sep>y <sep> z", "[X1] ﬁx prefix ﬁxed", "go <a b>c", "e\u0323\u0302 e\u0302\u0323 e\u0323\u0323",
    "ﬁ\u0301 ½\u0301", "ｶﾞ ｶ\u0301ﾞ", "\u1100\u1161\u11a8\u1100\u1161ㄱㅏㄱ", "\u1100\x07\u1161", "e\x07\u0301 \u0301",
    "\u0bae\u0bc6\u0bbe", "a\u2581\u2581b", "\U0001f469\u200d\U0001f469 1\ufe0f\u20e3",
    "<2en> to", "a <sym> b<sym>xc", "<sym>", "std::vector::size", "x" * 300, "12,345.67", *SCRIPTS,
]  # fmt: skip


def trained(lines: Iterable[str], folder: Path, **options: Any) -> bytes:
    import sentencepiece

    rules, written = folder / "rules.tsv", io.BytesIO()
    codes = lambda text: " ".join(f"{ord(character):X}" for character in text)  # noqa: E731
    rules.write_text("".join(f"{codes(old)}\t{codes(new)}\n" for old, new in FORMS.items()))
    if "normalization_rule_name" not in options:
        options["normalization_rule_tsv"] = os.path.relpath(rules)  # the file stores the path
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, num_threads=1, minloglevel=2, **options
    )
    rules.unlink()
    return written.getvalue().replace(b"user_defined", b"in_our_tests")  # the name of the rules: others are refused


def main() -> None:
    import sentencepiece

    FOLDER.mkdir(parents=True, exist_ok=True)
    pages = [line for page in sorted((ROOT / "docs").glob("*.md")) for line in page.read_text("utf-8").splitlines()]
    lines = sorted({line.strip() for line in pages if 40 < len(line) < 160})
    texts = [*random.Random(0).sample(lines, PROSE), *ODD]
    expected: dict[str, Any] = {"texts": texts}
    for name, options in MODELS.items():
        model = trained([*lines, *SCRIPTS[:-1] * 20], FOLDER, vocab_size=500, **options)
        (FOLDER / f"{name}.model").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        ids, ends = [], []
        for text in texts:
            pieces = processor.encode(text, return_type="proto").pieces
            ids.append([piece.id for piece in pieces])
            ends.append([*accumulate(len(piece.surface) for piece in pieces)])
        expected[name] = {"ids": ids, "ends": ends[:PROSE]}
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    (FOLDER / "expected.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

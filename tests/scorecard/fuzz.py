"""Make experiment files with mistakes, and run `check` on them."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

BASE = yaml.safe_dump(
    {
        "name": "tiny", "seed": 0, "corpus": {"type": "text_files", "paths": ["corpus.txt"]},
        "tokenizer": {"type": "wordpiece", "vocab_size": 200}, "data": {"sequence_length": 16, "held_out": 0.3},
        "embedding": {"dim": 8, "max_length": 16, "tie": "embeddings"},
        "discriminator": {"type": "bert", "dim": 16, "depth": 1, "heads": 2}, "generator": {"scale": 0.5},
        "masking": {"type": "replace_prob", "mask_prob": 0.15}, "sampler": {"type": "gumbel", "temperature": 1.0},
        "objective": {"type": "electra", "discriminator_weight": 50.0},
        "optimizer": {"type": "adamw", "weight_decay": 0.01},
        "schedules": {"learning_rate": {"type": "warmup_linear", "warmup_steps": 0}},
        "train": {"steps": 10, "batch_size": 2, "precision": "fp32", "learning_rate": 0.001},
        "evaluate": {"every": 5}, "checkpoint": {"every": 5, "keep": 3},
    },
    sort_keys=False,
).replace("paths:\n  - corpus.txt", "paths: [corpus.txt]")  # fmt: skip
LINES = BASE.splitlines()
REQUIRED = ("corpus", "tokenizer", "discriminator", "masking", "objective", "train")
POSITIVE = {"vocab_size", "sequence_length", "dim", "max_length", "depth", "heads", "steps", "batch_size", "keep",
            "scale"}  # fmt: skip
VALUED = [number for number, line in enumerate(LINES) if not line.endswith(":")]
CANARY = "canary"  # a file that hostile tags would create
NASTY = (
    "[]", "{}", "text", "null", "~", "true", "-1", "0", "1e400", "-1e400", ".inf", ".nan", "1" + "0" * 30, "9" * 5000,
    "0x10", "1_000", "1e3", "2001-01-01", "'1'", "[1, 2", "{a: 1", "{a: {b: {c: 1}}}", '"\\e[31m"', '"\\0"', "!!int x",
    "!!binary aGk=", "&a [*a]", "*nobody", "|", ">", "? a", "- 1", "%TAG", "@x", "`x`", "\t1", "ü", "日本", "🦊",
    "..", "/", "~root", "/dev/zero", "/proc/self/mem", "NaN", "yes", "off", "[[[[1]]]]", '"' + "a" * 10_000 + '"',
)  # fmt: skip


@dataclass
class Case:
    """A file, and the expected answer as far as it is known."""

    words: str
    text: str  # base64 of its bytes
    sets: list[str] = field(default_factory=list)
    code: int | None = None  # 2: the file is certainly wrong
    line: int | None = None  # ... in this line
    says: str = ""


def case(words: str, text: str | bytes, **known: object) -> Case:
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return Case(words, base64.b64encode(content).decode(), **known)  # type: ignore[arg-type]


def key_of(line: str) -> str:
    return line.split(":")[0].strip(" -")


def with_line(number: int, line: str) -> str:
    return "\n".join([*LINES[:number], line, *LINES[number + 1 :]]) + "\n"


def with_value(number: int, value: str) -> str:
    return with_line(number, LINES[number].split(":")[0] + f": {value}")


def typo(dice: random.Random) -> Case:
    number = dice.randrange(len(LINES))
    key, line = key_of(LINES[number]), LINES[number]
    place = dice.randrange(len(key))
    kinds = [
        key[:place] + key[place + 1 :],
        key[:place] + dice.choice("abcdefghijklmnopqrstuvwxyz_") + key[place:],
        key[:place] + dice.choice("abcdefghijklmnopqrstuvwxyz_") + key[place + 1 :],
        key[: max(place - 1, 0)] + key[max(place - 1, 0) : place + 1][::-1] + key[place + 1 :],
    ]
    wrong = dice.choice(kinds)
    known = {key_of(other) for other in LINES} | {""}
    indent = line[: len(line) - len(line.lstrip())]
    text = with_line(number, line.replace(f"{indent}{key}", f"{indent}{wrong}", 1))
    if wrong in known or wrong == key:
        return case(f"{key} written as {wrong!r}", text)
    # The answer must name the intended key, where it can be told despite one wrong letter.
    return case(f"{key} written as {wrong!r}", text, code=2, line=number + 1, says=key if len(key) > 4 else "")


def wrong_type(dice: random.Random) -> Case:
    number = dice.randrange(len(LINES))
    value = dice.choice(NASTY)
    return case(f"{key_of(LINES[number])}: {value[:40]}", with_value(number, value))


def out_of_range(dice: random.Random) -> Case:
    places = [n for n, line in enumerate(LINES) if key_of(line) in POSITIVE]
    number, value = dice.choice(places), dice.choice(["0", "-1", "-3.5", "1e300"])
    sure = {"code": 2, "line": number + 1} if value != "1e300" else {}
    return case(f"{key_of(LINES[number])}: {value}", with_value(number, value), **sure)


def missing(dice: random.Random) -> Case:
    section, kept, skipping = dice.choice(REQUIRED), [], False
    for line in LINES:
        skipping = line.startswith(f"{section}:") or (skipping and line.startswith(" "))
        kept += [] if skipping else [line]
    return case(f"{section} is missing", "\n".join(kept) + "\n", code=2, says=section)


def duplicate(dice: random.Random) -> Case:
    number = dice.choice(VALUED)
    text = "\n".join([*LINES[: number + 1], LINES[number], *LINES[number + 1 :]]) + "\n"
    return case(f"{key_of(LINES[number])} twice", text, code=2, line=number + 2, says=key_of(LINES[number]))


def tag(dice: random.Random) -> Case:
    number = dice.choice(VALUED)
    value = dice.choice([
        f"!!python/object/apply:os.system ['touch {CANARY}']",
        f"!!python/object/new:subprocess.Popen [['touch', '{CANARY}']]",
        "!!python/name:os.system", "!!python/module:os", "!!set {a}", "!include /etc/passwd", "!!omap [a: 1]",
    ])  # fmt: skip
    return case(f"{key_of(LINES[number])}: {value[:30]}", with_value(number, value),
                code=2, line=number + 1)  # fmt: skip


def bomb(dice: random.Random) -> Case:
    width, depth = dice.randint(5, 12), dice.randint(5, 12)
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, depth)]
    return case(f"aliases, {width} to the power of {depth}", "\n".join(lines) + "\n" + BASE, code=2)


def deep(dice: random.Random) -> Case:
    depth, pair = dice.choice([50, 500, 5_000, 50_000]), dice.choice(["[]", "{}"])
    value = pair[0] * depth if pair == "[]" else "{a: " * depth
    return case(f"{depth} levels of {pair}", with_line(1, f"seed: {value}"), code=2)


def encoding(dice: random.Random) -> Case:
    content = bytearray(BASE.encode())
    kind = dice.choice(["bytes", "latin-1", "utf-16", "utf-32", "nul", "bom", "cr", "cut"])
    if kind == "bytes":
        for _ in range(dice.randint(1, 5)):
            content.insert(dice.randrange(len(content)), dice.randrange(256))
    elif kind == "latin-1":
        content[0:0] = "# Übung\n".encode("latin-1")
    elif kind in ("utf-16", "utf-32"):
        content = bytearray(BASE.encode(kind))
    elif kind == "nul":
        content.insert(dice.randrange(len(content)), 0)
    elif kind == "bom":
        content[0:0] = b"\xef\xbb\xbf" * dice.randint(1, 2)
    elif kind == "cr":
        content = bytearray(BASE.replace("\n", dice.choice(["\r", "\r\n", "\x85", "\u2028"])).encode())
    else:
        del content[dice.randrange(len(content)) :]
    return case(f"encoding: {kind}", bytes(content))


def flips(dice: random.Random) -> Case:
    content = bytearray(BASE.encode())
    for _ in range(dice.randint(1, 20)):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    return case("bits flipped", bytes(content))


def huge(dice: random.Random) -> Case:
    number = dice.choice([n for n, line in enumerate(LINES) if line.split(":")[1].strip()[:1].isdigit()])
    digits = dice.choice([20, 40, 400, 5_000])
    return case(f"{key_of(LINES[number])} with {digits} digits", with_value(number, f"1{'0' * digits}"))


def shuffled(dice: random.Random) -> Case:
    number = dice.randrange(len(LINES))
    whole = LINES[number]
    line = dice.choice([f" {whole}", whole.lstrip(), f"\t{whole}", f"{whole} :", f"{whole} #"])
    return case(f"line {number + 1} as {line!r}", with_line(number, line))


def override(dice: random.Random) -> Case:
    key = dice.choice([
        "train.steps", "train", "seed", "train.steps.x", "", ".", "..", "sampler.temprature", "corpus.paths", "name",
        "a=b", "train.steps ", "ünicode", "__class__", "train.__init__", "\x1b[31m", "x" * 1000,
        "schedules.learning_rate.type",
    ])  # fmt: skip
    value = dice.choice(NASTY)
    glue = dice.choice(["=", "=", "=", " = ", "", "==", ":"])
    return Case(f"--set {key[:30]}{glue}{value[:30]}", base64.b64encode(BASE.encode()).decode(),
                [f"{key}{glue}{value}".replace("\0", "")])  # fmt: skip


MISTAKES: tuple[Callable[[random.Random], Case], ...] = (
    typo, wrong_type, out_of_range, missing, duplicate, tag, encoding, flips, huge, shuffled, override,
)  # fmt: skip
SLOW = (bomb, deep)  # which take up to a second each: one case in 50


def cases(seed: object, number: int) -> list[Case]:
    """Return different mistakes in turn."""
    kinds = [SLOW[n // 50 % 2] if n % 50 == 49 else MISTAKES[n % len(MISTAKES)] for n in range(number)]
    return [make(random.Random(f"{seed} {n}")) for n, make in enumerate(kinds)]


def write(found: list[Case], file: Path) -> None:
    file.write_text(json.dumps([asdict(case) for case in found]), encoding="utf-8")


def judge(cases_file: str, answers_file: str) -> int:
    """Run `check` on each case in this process; writes exit code, words, seconds and the growth of memory."""
    from electra_lab.cli import main

    answers = []
    for case in json.loads(Path(cases_file).read_text(encoding="utf-8")):
        Path("fuzz.yaml").write_bytes(base64.b64decode(case["text"]))
        sets = [part for setting in case["sets"] for part in ("--set", setting)]
        sys.argv = ["electra-lab", "check", "fuzz.yaml", *sets]
        out, err = io.StringIO(), io.StringIO()
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        code: object = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
            except BaseException as error:
                code = f"{type(error).__name__}: {error}"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        answers.append([code, err.getvalue()[:30_000], time.process_time() - began, grown])
        Path("fuzz.yaml").unlink()
    Path(answers_file).write_text(json.dumps(answers), encoding="utf-8")
    return 0

"""Components that break their contract are refused with file, line and exit code 2 before anything is written, also
by `check`, except for mistakes that only a corpus reveals."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.electra_lab.jobs.finetuning.small import PLUGIN, pretrained, write_finetuning
from tests.helpers import write_experiment

START = "import numpy as np\nimport torch\nfrom torch import nn\nfrom registry import *\n"
OBJECTIVE = '''
from electra_lab.objectives.electra import Electra
@objectives.register("mine")
class Mine(Electra):
    """Mine."""
    def __init__(self, generator, discriminator, masking, sampler, vocabulary, /):
        super().__init__(generator, discriminator, masking, sampler, vocabulary)
'''
NO_COUNTS = '''
@objectives.register("mine")
class Mine(nn.Module):
    """Mine."""
    def __init__(self, generator, discriminator, masking, sampler, vocabulary, /):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
    def forward(self, batch, rng):
        states = self.discriminator.hidden(batch.tokens, batch.attention_mask, batch.segments)
        return Losses({"all": Term(states.sum(), batch.attention_mask.sum(), 1.0)})
'''
NO_MODULE = """
@objectives.register("mine")
def mine(generator, discriminator, masking, sampler, vocabulary, /):
    'Mine.'
"""
FORWARD = """
    def forward(self, batch, rng):
        losses = super().forward(batch, rng)
        terms, one = dict(losses.terms), losses.terms["generator"]
        {}
        return Losses(terms, losses.predictions, losses.detection)
"""
COUNTS = """
    def counts(self, batch, rng):
        counts = super().counts(batch, rng)
        return {}
"""
ACCUMULATOR = """
    def accumulator(self, show):
        from electra_lab.metrics import PretrainingMetrics
        class Mine(PretrainingMetrics):
            {}
        return Mine(self.vocabulary, show)
"""
OF_OBJECTIVES = {
    "no counts": NO_COUNTS,
    "no module": NO_MODULE,
    **{f"counts {text}": OBJECTIVE + COUNTS.format(text) for text in (
        "None", "list(counts)", "{}", "{name: 3 for name in counts}",
        "{name: one.float() for name, one in counts.items()}",
        "{name: one.expand(2) for name, one in counts.items()}", "{name: one + 1 for name, one in counts.items()}")},
    **{f"terms {text}": OBJECTIVE + FORWARD.format(text) for text in (
        "return None", "return one.sum", "return Losses(None)", "return Losses(list(terms.values()))",
        "terms['generator'] = one.sum", "terms['generator'] = Term(3.0, one.count, 1.0)",
        "terms['generator'] = Term(one.sum, 3, 1.0)", "terms['generator'] = Term(one.sum, one.count.float(), 1.0)",
        "terms['generator'] = Term(one.sum, one.count > 0, 1.0)", "terms['generator'] = Term(one.sum, one.count, 'x')",
        "terms['generator'] = Term(one.sum, one.count, None)", "terms[0] = terms.pop('generator')",
        "return Losses(terms, list(losses.predictions))", "return Losses(terms, None)")},
    **{f"accumulator {text}": OBJECTIVE + ACCUMULATOR.format(text) for text in (
        "values = None", "metrics = None", "metrics = {'generator_loss': 'x'}", "def values(self): return [1.0]",
        "def values(self): return {'generator_loss': 'x'}", "def gains(self): return [1]",
        "def gains(self): return {'x': 'y'}", "def examples(self): return 3", "def examples(self): return ['x']")},
    **{f"member {text}": f"{OBJECTIVE}    {text}\n" for text in (
        "accumulator = 3", "needs = {'generator': True}", "conflicts = 3", "def flops(self, price): return 3",
        "def earlier_runs(self): return ['x']", "def at_step(self, step): pass", "def forward(self, batch): pass")},
}  # fmt: skip
GENERATOR = '''
@generators.register("mine")
class Mine(nn.Module):
    """Mine."""
    dim = 1
    def __init__(self, vocabulary, /):
        super().__init__()
        self.size = vocabulary.size
    def hidden(self, tokens, attention_mask, segments, documents=None):
        return torch.zeros(*tokens.shape, 1)
    def token_logits(self, hidden, positions):
        return torch.zeros(*positions.shape, self.size)
'''
PACKING = '''
@packings.register("mine")
class Mine:
    """Mine."""
    def __init__(self, tokens, length, vocabulary, /):
        self.length = length
    def __len__(self):
        return 20
    def rows(self, rows, /):
        tokens = np.full((len(rows), self.length), 7)
        return Packed(tokens, tokens > 0, tokens * 0)
'''
CORPUS = '''
@corpora.register("mine")
class Mine:
    """Mine."""
    def __init__(self, /): pass
    def __iter__(self):
        yield from (f"the cat number {n} sat on the mat" for n in range(40))
        yield "more"
    def fingerprint(self):
        return "same"
'''
SCHEDULE = '@schedules.register("mine")\ndef mine(step, steps, /):\n    "Mine."\n    return {}\n'
OPTIMIZER = '''
@optimizers.register("mine")
class Mine(torch.optim.SGD):
    """Mine."""
    def __init__(self, parameters, learning_rate, /):
        super().__init__([p for _, p in parameters], lr=learning_rate)
    def state_bytes(self, parameter):
        return 0
'''


def changed(text: str, *pairs: tuple[str, str]) -> dict[str, str]:
    assert all(old in text for old, _ in pairs)
    return {new: text.replace(old, new) for old, new in pairs}


LOGITS = "return torch.zeros(*positions.shape, self.size)"
ROWS = "return Packed(tokens, tokens > 0, tokens * 0)"
OF_OTHERS = {
    "generator": changed(
        GENERATOR, (LOGITS, "return None"), (LOGITS, "return torch.zeros(*positions.shape)"),
        ("def token_logits", "def logits"), ("(self, hidden, positions)", "(self, hidden)"),
        ("(nn.Module)", "(dict)"),
    ),
    "packing": changed(
        PACKING, (ROWS, "return None"), (ROWS, "return tokens, tokens > 0, tokens * 0"), ("return 20", "return None"),
        (ROWS, "return Packed(tokens[:, :3], tokens[:, :3] > 0, tokens[:, :3] * 0)"), ("return 20", "return 0"),
        (ROWS, "return Packed(tokens.astype(float), tokens > 0, tokens * 0)"),
        (ROWS, "return Packed([[7]], [[1]], [[0]])"),
        (ROWS, ROWS + "\n    def source_document_ids(self, rows): return np.zeros(3)"), ("def rows", "def row"),
        (ROWS, "return Packed(tokens, tokens > 0, tokens * 0, tokens[:, :1])"),
    ),
    "schedules": changed(SCHEDULE, ("{}", "None"), ("{}", "'x'"), ("{}", "[1.0]")),
    "optimizer": changed(
        OPTIMIZER, ("(self, parameter):", "(self):"), ("return 0", "return 'x'"),
        ("    def state", "    step = None\n    def state"),
    ),
}  # fmt: skip
OF_CORPORA = changed(
    CORPUS, *((('"more"'), text) for text in ("None", "b'x'", "3", "Document(None)", "Document('x', 3)",
                                              "Document('x', split='dev')", "Document('x', removed='a')")),
    ('"same"', "None"), ('"same"', "3"), ("def fingerprint", "def print"),
)  # fmt: skip
# Each case: the section of the file, the plug-in, and the command that notices: `check` reads no text.
CASES = {
    **{case: ("objective", text, "check") for case, text in OF_OBJECTIVES.items()},
    **{f"{kind} {case}": (kind, text, "check") for kind, cases in OF_OTHERS.items() for case, text in cases.items()},
    **{f"corpus {case}": ("corpus", text, "run") for case, text in OF_CORPORA.items()},
}
GOOD = {"objective": OBJECTIVE, "generator": GENERATOR, "packing": PACKING, "optimizer": OPTIMIZER, "corpus": CORPUS}


def written(folder: Path, kind: str, text: str) -> Path:
    (folder / "mine.py").write_text(START + text)
    value = "{learning_rate: {type: mine}}" if kind == "schedules" else "{type: mine}"
    return write_experiment(folder, **{kind: value, "imports": "[mine.py]"})


@pytest.mark.parametrize(
    ("case", "verb"),
    [
        *((case, verb) for case, (_, _, verb) in CASES.items()),
        *(pytest.param(case, "run", marks=pytest.mark.slow) for case in OF_OBJECTIVES),  # quick with `check`
    ],
)
def test_a_component_that_breaks_its_contract(lab: Any, tmp_path: Path, case: str, verb: str) -> None:
    kind, text, _ = CASES[case]
    out = ["--out", tmp_path / "run"] if verb == "run" else []
    err = lab.fails(2, verb, written(tmp_path, kind, text), *out)
    assert re.search(r"\bmine\.py:\d+: \w+ 'mine' ", err), err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", GOOD)
def test_good_ones_pass(lab: Any, tmp_path: Path, kind: str) -> None:
    assert lab("check", written(tmp_path, kind, GOOD[kind]))[0] == 0


HEADS = '''
@heads.register("yours")
class Yours(nn.Linear):
    """Yours."""
    def __init__(self, dim, sizes, vocabulary, /):
        super().__init__(dim, 1)
    def flops(self, length, masked):
        return 2 * length * self.in_features
    def forward(self, states):
        return nn.functional.linear(states, self.weight)
@objectives.register("mine")
class Mine(objectives.get("electra").component):
    """Mine."""
    needs = Needs(heads=["yours", "replaced"])
    def forward(self, batch, rng):
        states = self.discriminator.hidden(batch.tokens, batch.attention_mask, batch.segments)
        losses, logits = super().forward(batch, rng), self.discriminator.predict("yours", states)
        generator, found = losses.terms.values()
        loss = logits.squeeze(-1).masked_fill(~batch.attention_mask, 0).sum()
        found = Term(found.sum + loss, found.count, found.weight)
        return Losses({"generator": generator, "discriminator": found}, losses.predictions, losses.detection)
'''
# A backbone with its own head in place of the objective's.
OWN_HEAD = (
    HEADS.partition("@objectives")[0]
    + '''
@backbones.register("mine")
class Mine(backbones.get("bert").component):
    """Mine."""
    own_heads = {"replaced": {"type": "yours"}}
'''
)
OUTPUT = "nn.functional.linear(states, self.weight)"


@pytest.mark.parametrize(
    ("section", "text", "returned", "named"),
    [
        ("objective", HEADS, OUTPUT, ""), ("objective", HEADS, f"[{OUTPUT}]", "head 'yours' "),
        ("objective", HEADS, f"{OUTPUT}[:1]", "head 'yours' "),
        ("objective", HEADS, f"{OUTPUT}[:, :3]", "objective 'mine' failed: .*'yours'"),
        ("discriminator", OWN_HEAD, f"{OUTPUT}.squeeze(-1)", ""),
        ("discriminator", OWN_HEAD, OUTPUT, "head 'replaced' "),
    ],
)  # fmt: skip
def test_a_head_of_another_shape_is_named(lab: Any, tmp_path: Path, section, text, returned, named) -> None:
    (tmp_path / "mine.py").write_text(START + text.replace(OUTPUT, returned))
    value = "{type: mine, dim: 16, depth: 1, heads: 2}" if section == "discriminator" else "{type: mine}"
    file = write_experiment(tmp_path, **{section: value, "imports": "[mine.py]", "generator": "{type: unigram}"})
    code, _, err = lab("run" if named else "check", file)
    assert (code, bool(re.search(rf"\bmine\.py:\d+: {named}", err))) == ((2, True) if named else (0, False)), err


TASK = """
from dataclasses import replace
from electra_lab.tasks.text_classification import TextClassification
@tasks.register("mine", takes=TextExample)
class Mine(TextClassification):
    'Mine.'
    def {}
"""
OF_TASKS = [
    "fit_labels(self, examples): return None", "rows(self, examples, encoder, length): return None",
    "rows(self, examples, encoder, length): return [[] for _ in examples]",
    "rows(self, examples, encoder, length): return super().rows(examples[:1], encoder, length)",
    "head(self, dim, dropout): return None",
    "head(self, dim, dropout): return nn.Linear(dim, 2)", "losses(self, outputs, batch): return None",
    "losses(self, outputs, batch): return {'x': Term(3.0, 2, 1.0)}", "truncation(self, examples, rows): return None",
    "results(self, *given): return {'accuracy': 1.0}",
    "results(self, *given): return replace(super().results(*given), predictions=[])",
    "results(self, *given): return replace(super().results(*given), predictions=[{'id': x.id} for x in given[0]])",
    "results(self, *given): return replace(super().results(*given), predictions=[None for _ in given[0]])",
    "results(self, *given): return replace(super().results(*given), "
    "predictions=[{'id': x.id, 'prediction': 1 if n == 0 else x} for n, x in enumerate(given[0])])",
    "results(self, *given): return replace(super().results(*given), metrics={'accuracy': 'x'})",
    "results(self, *given): return replace(super().results(*given), metrics={'unheard': 1.0})",
]  # fmt: skip


SAMPLERS = '''
def helper(value):
    return value
@samplers.register("first")
def first(logits, rng, /):
    """Right."""
    return logits.argmax(-1)
@samplers.register("second")
def second(logits, rng, /):
    """Draws."""
    return helper(logits.argmax(-1))
'''
STEP = """
    def step(self, closure=None):
        return super().step()
"""
# Three of the plug-in's classes have the same name.
WHOLE = START + SAMPLERS + GENERATOR + OBJECTIVE + FORWARD.format("return losses") + OPTIMIZER + STEP
DRAWS, LOSSES, STEPS = "return helper(logits.argmax(-1))", "return losses\n", "return super().step()"
SECTIONS = {
    "imports": "[mine.py]", "sampler": "{type: second}", "objective": "{type: mine}", "optimizer": "{type: mine}",
    "train": "{steps: 2, batch_size: 2, precision: fp32}", "generator": "{scale: 0.5}",
}  # fmt: skip
GUESSES = SECTIONS | {"generator": "{type: mine}"}
READING = "reading the corpus (once; the result is kept)\n"


@pytest.mark.parametrize(
    ("right", "wrong", "sentence"),
    [
        (DRAWS, "return 1 / 0", "@sampler 'second' failed: ZeroDivisionError"),
        (DRAWS, "return logits", "sampler 'second' returned tokens"),
        (LOGITS, "return self.nothing", "@generator 'mine' failed: AttributeError"),
        (LOSSES, "return losses.nothing", "@objective 'mine' failed: AttributeError"),
        (LOSSES, "return losses.terms", "objective 'mine' returned a dict"),
        (LOSSES, "return Losses({'generator': one})", "objective 'mine' returned the terms"),
        (STEPS, "raise KeyError('state')", "@optimizer 'mine' failed: KeyError"),
        (STEPS, "raise ValueError('no')", "optimizer: mine refuses this: no"),
    ],
)
def test_of_several_components_the_one_that_is_wrong_is_named(lab, tmp_path: Path, right, wrong, sentence) -> None:
    """With kind, name and the line of the mistake."""
    text = WHOLE.replace(right, f"{wrong}\n")
    (tmp_path / "mine.py").write_text(text)
    file = write_experiment(tmp_path, **(GUESSES if right == LOGITS else SECTIONS))
    err = lab.fails(2, "run", file, "--out", tmp_path / "run")
    place = next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(wrong))
    here = rf"\S*mine\.py:{place}: " if sentence.startswith("@") else r"\S+:\d+: "
    assert re.match(here + re.escape(sentence.removeprefix("@")), err.removeprefix(READING)), err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sections", [SECTIONS, GUESSES])
def test_without_a_mistake_they_train(lab: Any, tmp_path: Path, no_report: None, sections: dict[str, str]) -> None:
    (tmp_path / "mine.py").write_text(WHOLE)
    code, _, err = lab("run", write_experiment(tmp_path, **sections))
    assert code == 0, err


def test_a_failure_during_training_names_all_calls_of_the_plug_in(lab: Any, tmp_path: Path) -> None:
    text = WHOLE.replace("return value\n", 'return value if not hasattr(helper, "late") else value.nothing\n')
    text = text.replace(STEPS, f"helper.late = True\n        {STEPS}")
    (tmp_path / "mine.py").write_text(text)
    err = lab.fails(2, "run", write_experiment(tmp_path, **SECTIONS), "--out", tmp_path / "run")
    place = next(number for number, line in enumerate(text.splitlines(), 1) if "value.nothing" in line)
    last = "\n".join(err.splitlines()[-4:])
    assert f"mine.py:{place}: sampler 'first' failed: AttributeError" in last
    assert "in forward: losses = super().forward(batch, rng)" in last
    assert "in second: return helper(logits.argmax(-1))" in last


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrained(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("case", OF_TASKS)
def test_a_task_that_breaks_its_contract(lab: Any, tmp_path: Path, model: Path, case: str) -> None:
    (tmp_path / "mine.py").write_text(START + TASK.format(case))
    imports = [str(PLUGIN), str(tmp_path / "mine.py")]
    err = lab.fails(2, "finetune", write_finetuning(tmp_path, model, task={"type": "mine"}, imports=imports))
    assert re.search(r"\bmine\.py:\d+: task 'mine' ", err), err
    assert ("at least one row for each" in err) == (case.startswith("rows") and "None" not in case)

"""Compare steps of `modernbert` and `deberta` with those of transformers' modules, alternating.

    python benchmarks/encoders.py --threads 1 --clock processor
    python benchmarks/encoders.py --threads 1 --clock processor --whole

A step is forward, backward and AdamW in float32, without dropout. Both sides have the same sizes, weights and token
vectors. All rows except the first end in padding, up to a quarter of a row. transformers' modules attend as they do by
default. The loss is a weighted sum of the states at 15 % of the real positions. Both sides have the memory settings of
our trainings (training/device.py). Before anything is timed, their states are compared.

With --whole, a step is that of replaced token detection, with a generator as large as the discriminator, shared
embeddings and rows without padding: ours, and the usual one of _steps.py around transformers' ForMaskedLM and
ForTokenClassification, each with its own memory settings.

Memory is the growth of the process's peak during a step: activations, gradients and buffers of operations, without
weights and AdamW's state. Reads /proc, so that it needs Linux.
"""

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from _alternating import CLOCKS, alternate, parser, table, write
from _steps import LAB, USUAL, Case, Logits, Step, make, settings_of, usual
from choices import processor
from memory import resident
from torch import Tensor, nn
from transformers import (
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    DebertaV2ForTokenClassification,
    DebertaV2Model,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForTokenClassification,
    ModernBertModel,
)

from electra_lab.pretrained.families import WRITTEN
from registry import backbones

THEIRS = "transformers"
CLASSES: Mapping[str, tuple[Any, ...]] = {
    "modernbert": (ModernBertModel, ModernBertForMaskedLM, ModernBertForTokenClassification),
    "deberta": (DebertaV2Model, DebertaV2ForMaskedLM, DebertaV2ForTokenClassification),
}
OPTIONS: Mapping[str, Mapping[str, Any]] = {"modernbert": {}, "deberta": {"attention_dropout": 0.0}}


def config(name: str, options: Any, vocabulary: int) -> Any:
    """Return transformers' config of these sizes, with the published settings and no dropout."""
    sizes = {"vocab_size": vocabulary, "hidden_size": options.width, "num_hidden_layers": options.depth,
             "num_attention_heads": options.heads, "pad_token_id": 0}  # fmt: skip
    if name == "modernbert":
        ids = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
        return ModernBertConfig(**sizes, **ids, intermediate_size=round(1.5 * options.width), num_labels=1)
    return DebertaV2Config(
        **sizes, intermediate_size=4 * options.width, type_vocab_size=0, position_biased_input=False, num_labels=1,
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=256, share_att_key=True,
        norm_rel_ebd="layer_norm", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def encoders(name: str, options: Any, length: int, rows: int) -> tuple[dict[str, Step], float]:
    """Return a step of each side, and the largest difference of their states at real positions."""
    theirs = CLASSES[name][0](config(name, options, vocabulary=3)).train()
    sizes = options.width, options.depth, options.heads, length
    ours = backbones.get(name).component(*sizes, dropout=0.0, **OPTIONS[name]).train()
    weights = WRITTEN[name].names("").lab_tensors(theirs.state_dict())
    ours.load_state_dict({key.removeprefix("backbone."): value for key, value in weights.items() if "backbone" in key})
    # Rows of different lengths
    x = torch.randn(rows, length, options.width)
    ends = torch.linspace(length, 0.75 * length, rows).round()
    mask = torch.arange(length) < ends[:, None]
    aims = torch.randn_like(x) * (mask & (torch.rand(rows, length) < 0.15)).unsqueeze(-1)

    def states_of(side: str) -> Tensor:
        if side == THEIRS:
            states: Tensor = theirs(inputs_embeds=x, attention_mask=mask.long()).last_hidden_state
            return states
        return ours(x, mask)  # type: ignore[no-any-return]

    with torch.no_grad():
        difference = (states_of(THEIRS) - states_of(LAB))[mask].abs().max().item()
    return {
        THEIRS: step_of(theirs, lambda: (states_of(THEIRS) * aims).sum()),
        LAB: step_of(ours, lambda: (states_of(LAB) * aims).sum()),
    }, difference


def step_of(module: nn.Module, loss_of: Callable[[], Tensor]) -> Step:
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-6, weight_decay=0.01)

    def take() -> None:
        loss_of().backward()
        optimizer.step()
        optimizer.zero_grad()

    return take


def pairs(name: str, options: Any, length: int, rows: int) -> tuple[dict[str, Step], None]:
    """Return the usual step around transformers' modules and ours, whose states depend on draws."""
    sized = {"type": name, "dim": options.width, "depth": options.depth, "heads": options.heads, **OPTIONS[name]}
    changes = [f"embedding.dim={options.width}", f"tokenizer.vocab_size={options.vocabulary}"]
    changes += [f"discriminator={sized}".replace("'", ""), f"generator={{type: {name}, scale: 1.0}}"]
    case = Case("electra_small", length, rows, tuple(changes))
    generator, discriminator = (kind(config(name, options, options.vocabulary)) for kind in CLASSES[name][1:])
    discriminator.base_model.embeddings = generator.base_model.embeddings

    class Detector(Logits):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens).squeeze(-1)  # one label

    return {
        USUAL: usual(case, pair=(Logits(generator.train()), Detector(discriminator.train()))),
        f"{LAB} fp32": make(case, f"{LAB} fp32"),
    }, None


def peak(step: Step) -> float:
    """Return the growth of the process's peak during a step, in MB."""
    step()
    gc.collect()
    settings_of(THEIRS)  # freed memory goes back to the system
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = resident("VmRSS")
    step()
    return resident("VmHWM") - before


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--encoders", nargs="+", choices=CLASSES, default=list(CLASSES))
    options.add_argument("--shapes", nargs="+", default=["128x16", "512x4", "2048x1"], help="length x rows")
    options.add_argument("--whole", action="store_true", help="steps of replaced token detection")
    for key, number in {"width": 256, "depth": 3, "heads": 4, "vocabulary": 30_522}.items():
        options.add_argument(f"--{key}", type=int, default=number)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    for name in given.encoders:
        for shape in given.shapes:
            torch.manual_seed(0)
            length, rows = map(int, shape.split("x"))
            made = pairs if given.whole else encoders
            ways, difference = made(name, given, length, rows)
            megabytes = {way: peak(step) for way, step in ways.items()}
            settings = settings_of if given.whole else lambda _: settings_of(LAB)
            seconds = alternate(ways, given.rounds, 1, before=settings, clock=CLOCKS[given.clock])
            sizes = f"width {given.width}, {given.depth} layers, {length} x {rows}"
            about = f"{processor()}, {given.threads} threads, {given.clock} time, torch {torch.__version__}"
            cells = {"peak MB": {way: f"{grown:,.0f}" for way, grown in megabytes.items()}}
            write(
                given.out,
                f"{'Pair' if given.whole else 'Encoder'} of {name}, {sizes}: {about}",
                table(seconds, [next(iter(ways))], cells),
                {"case": f"{name} {shape}", "whole": given.whole, "processor": processor()},
                {"seconds": seconds, "megabytes": megabytes, "difference": difference},
            )


if __name__ == "__main__":
    main()

"""Trainers as the laws see them. An adapter's docstring says how it calls the system, following the system's docs.

Nothing is taken from what a system reports. Hooks keep what its networks read, and the gradient of its loss at their
logits, which is zero where a position does not count and whose sign tells the label. Only the positions that DeBERTa
masks are those that its mask generator labels: its generator is too much code to take from its files.
"""

from __future__ import annotations

import ast
import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from electra_lab.testing import CLS, MASK, PAD, SEP

FOLDER = Path(os.environ.get("ELECTRA_LAB_LAWS_PEERS", ""))
SIZE = 24
NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrs"]
IDS = {name: number for number, name in enumerate(NAMES)}
LOGITS = torch.randn(SIZE, generator=torch.Generator().manual_seed(7))  # of every generator, at every position


@dataclass
class Seen:
    """One training or evaluation step; parts that a system lacks are None."""

    inputs: Tensor  # Int[B T], what the generator reads
    chosen: Tensor  # Bool[B T], where its loss counts
    loss: float | None = None
    corrupted: Tensor | None = None  # Int[B T], what the discriminator reads
    judged: Tensor | None = None  # Bool[B T], where its loss counts
    labels: Tensor | None = None  # Bool[B T], replaced


# tokens Int[B T], training, the number of the first row in the data: a step with torch's generator as it stands
Run = Callable[[Tensor, bool, int], Seen]


class Watch:
    """Records the inputs of a network and the logits of its head."""

    def __init__(self, network: nn.Module, head: nn.Module) -> None:
        network.register_forward_pre_hook(self._read, with_kwargs=True)
        head.register_forward_hook(self._keep)

    def _read(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self.tokens = (args[0] if args else kwargs["input_ids"]).clone()

    def _keep(self, _: nn.Module, __: Any, logits: Tensor) -> None:
        logits.retain_grad()
        self.logits = logits

    def gradient(self) -> Tensor:
        """Of the last logit at each position, Float[B T]: of one, or of the second of two classes."""
        gradient = torch.zeros_like(self.logits) if self.logits.grad is None else self.logits.grad.nan_to_num()
        return gradient if gradient.dim() == 2 else gradient[..., -1]


class Network(nn.Module):
    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, tokens: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.logits.expand(*tokens.shape, -1).clone()


def seen(loss: Tensor, generator: Watch, discriminator: Watch | None = None) -> Seen:
    loss.backward()  # type: ignore[no-untyped-call]
    found = Seen(generator.tokens, generator.gradient() != 0, loss.item())
    if discriminator is not None:
        gradient = discriminator.gradient()
        found.corrupted, found.judged, found.labels = discriminator.tokens, gradient != 0, gradient < 0
    return found


def tiny(kind: str) -> Any:
    """Return a tiny ELECTRA of transformers; a masked LM always answers LOGITS."""
    import transformers

    config = transformers.ElectraConfig(
        vocab_size=SIZE, embedding_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, tie_word_embeddings=False, num_labels=2, attn_implementation="eager",
    )  # fmt: skip
    model = getattr(transformers, kind)(config)
    if kind == "ElectraForMaskedLM":
        nn.init.zeros_(model.generator_lm_head.weight)
        model.generator_lm_head.bias.data.copy_(LOGITS)
    return model


def definitions(file: str, *names: str, **given: Any) -> dict[str, Any]:
    """Return functions and classes of a file that cannot be imported here; `given` are the names that it imports."""
    if not (FOLDER / file).exists():
        raise ImportError(f"{file} is not in the folder")
    body = ast.parse((FOLDER / file).read_text(encoding="utf-8")).body
    kept = [node for node in body if getattr(node, "name", None) in names]
    for node in kept:
        node.decorator_list = []  # type: ignore[attr-defined]
    namespace = {"torch": torch, "nn": nn, "random": random, **given}
    exec(compile(ast.Module(kept, []), file, "exec"), namespace)
    return namespace


def commit(name: str) -> str:
    asked = ["git", "--git-dir", FOLDER / name / ".git", "log", "-1", "--format=%h"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip() or "unknown commit"


def _electra(package: Any) -> Run:
    generator, discriminator = Network(LOGITS), Network(torch.zeros(1))
    watches = Watch(generator, generator), Watch(discriminator, discriminator)
    ids = {"mask_token_id": MASK, "pad_token_id": PAD, "mask_ignore_token_ids": [CLS, SEP]}
    trainer = package.Electra(generator, discriminator, num_tokens=SIZE, mask_prob=0.15, **ids)
    return lambda tokens, training, _: seen(trainer.train(training)(tokens).loss, *watches)


def electra_lab() -> tuple[str, Run]:
    """`interop.electra_pytorch.Electra`, called as electra-pytorch: the control, which must obey every law."""
    from electra_lab.interop import electra_pytorch

    return version("electra-lab"), _electra(electra_pytorch)


def electra_pytorch() -> tuple[str, Run]:
    """`Electra(generator, discriminator, mask_ignore_token_ids=[cls, sep], ...)(tokens).loss`, as in the README."""
    import electra_pytorch as package

    return version("electra-pytorch"), _electra(package)


def mlm_pytorch() -> tuple[str, Run]:
    """`MLM(transformer, mask_ignore_token_ids=[cls, sep], ...)(tokens)`, as in the README."""
    from mlm_pytorch import MLM

    network = Network(LOGITS)
    watch = Watch(network, network)
    trainer = MLM(network, mask_token_id=MASK, pad_token_id=PAD, mask_prob=0.15, mask_ignore_token_ids=[CLS, SEP])
    return version("mlm-pytorch"), lambda tokens, training, _: seen(trainer.train(training)(tokens), watch)


def _collator() -> Any:
    import transformers
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    special = dict(zip(("pad", "unk", "cls", "sep", "mask"), NAMES, strict=False))
    options: Any = {f"{name}_token": token for name, token in special.items()}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **options)
    collate = transformers.DataCollatorForLanguageModeling(tokenizer)

    def batch(tokens: Tensor) -> Any:
        rows = [row[row != PAD].tolist() for row in tokens]
        masks = [tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in rows]
        keys = "input_ids", "attention_mask", "special_tokens_mask"
        return collate([dict(zip(keys, (r, [1] * len(r), m), strict=True)) for r, m in zip(rows, masks, strict=True)])

    return batch


def transformers() -> tuple[str, Run]:
    """`DataCollatorForLanguageModeling(tokenizer)`, with `special_tokens_mask`, and `ElectraForMaskedLM`."""
    collate, model = _collator(), tiny("ElectraForMaskedLM")
    watch = Watch(model, model.generator_lm_head)
    return version("transformers"), lambda tokens, training, _: seen(
        model.train(training)(**collate(tokens)).loss, watch
    )


def txtai() -> tuple[str, Run]:
    """Model and collator of `HFTrainer`'s `task="token-detection"`, with transformers' tiny ELECTRAs."""
    from txtai.models import TokenDetection

    collate, generator, discriminator = _collator(), tiny("ElectraForMaskedLM"), tiny("ElectraForPreTraining")
    head = discriminator.discriminator_predictions
    watches = Watch(generator, generator.generator_lm_head), Watch(discriminator, head)
    model = TokenDetection(generator, discriminator, None)
    return version("txtai"), lambda tokens, training, _: seen(model.train(training)(**collate(tokens))[0], *watches)


def zeldarose() -> tuple[str, Run]:
    """`RTDTrainingModel.training_step`, with two models as `--pretrained-model` loads them."""
    import transformers as library
    from zeldarose.datasets.transform import TextBatch
    from zeldarose.tasks.rtd import RTDTrainingModel

    generator, discriminator = tiny("ElectraForMaskedLM"), tiny("ElectraForTokenClassification")
    watches = Watch(generator, generator.generator_lm_head), Watch(discriminator, discriminator.classifier)
    model: Any = RTDTrainingModel(discriminator, generator, MASK, SIZE)
    model.log = lambda *_, **__: None  # outside of a Trainer
    library.logging.set_verbosity_error()

    def run(tokens: Tensor, training: bool, _: int) -> Seen:
        keep = torch.isin(tokens, torch.tensor([PAD, CLS, SEP]))
        # Evaluation too: validation_step masks and computes the same, but returns no loss.
        batch = TextBatch(tokens, tokens != PAD, keep, torch.zeros_like(tokens))
        return seen(model.train(training).training_step(batch, 0), *watches)

    return version("zeldarose"), run


def _ngram_masks(**options: Any) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    import math
    from bisect import bisect

    import numpy as np

    file = "DeBERTa/DeBERTa/apps/tasks/mlm_task.py"
    code = definitions(file, "NGramMaskGenerator", np=np, math=math, bisect=bisect)
    masker = code["NGramMaskGenerator"](SimpleNamespace(vocab=IDS), max_seq_len=512, **options)

    def mask(tokens: Tensor, start: int) -> tuple[Tensor, Tensor]:
        inputs, labels = torch.zeros_like(tokens), torch.zeros_like(tokens)
        for place, row in enumerate(tokens):
            dice = random.Random(start + place)  # as DynamicDataset seeds it, with the number of the example
            words, wanted = masker.mask_tokens([NAMES[token] for token in row[row != PAD]], dice)
            inputs[place, : len(words)] = torch.tensor([IDS[word] for word in words])
            labels[place, : len(words)] = torch.tensor(wanted)
        return inputs, labels

    return mask


def deberta_mlm() -> tuple[str, Run]:
    """`NGramMaskGenerator` as MLMTask makes it, with `--max_ngram 1`."""
    mask = _ngram_masks(max_gram=1)

    def run(tokens: Tensor, training: bool, start: int) -> Seen:
        inputs, labels = mask(tokens, start + training * torch.initial_seed())
        return Seen(inputs, labels > 0)

    return commit("DeBERTa"), run


def deberta_rtd() -> tuple[str, Run]:
    """`NGramMaskGenerator` as RTDTask makes it, `RTDModel.make_electra_data`, and the discriminator's head and loss."""
    mask = _ngram_masks(max_gram=1, keep_prob=0, mask_prob=1)
    model = definitions("DeBERTa/DeBERTa/apps/tasks/rtd_task.py", "RTDModel", NNModule=nn.Module)["RTDModel"]
    file = "DeBERTa/DeBERTa/apps/models/replaced_token_detection_model.py"
    head = definitions(file, "LMMaskPredictionHead", ACT2FN={"gelu": nn.functional.gelu}, LayerNorm=nn.LayerNorm)
    config = SimpleNamespace(hidden_size=8, hidden_act="gelu", layer_norm_eps=1e-7)
    discriminator = head["LMMaskPredictionHead"](config)
    watch = Watch(nn.Identity(), discriminator.classifier)

    def run(tokens: Tensor, training: bool, start: int) -> Seen:
        inputs, labels = mask(tokens, start + training * torch.initial_seed())
        answers = {"logits": LOGITS.expand(int((labels > 0).sum()), -1), "loss": torch.zeros(1)}
        pair: Any = SimpleNamespace(generator_fw=lambda **_: answers)
        pair.topk_sampling = lambda *given, **options: model.topk_sampling(pair, *given, **options)
        data = {"input_ids": inputs.int(), "labels": labels.int(), "input_mask": (tokens != PAD).int()}
        corrupted = model.make_electra_data(pair, data)[0]["input_ids"]
        loss = discriminator(torch.randn(*tokens.shape, 8), corrupted, data["input_mask"], data["labels"])[2].mean()
        loss.backward()
        gradient = watch.gradient()
        return Seen(inputs, labels > 0, loss.item(), corrupted.long(), gradient != 0, gradient < 0)

    return commit("DeBERTa"), run


def richarddwang() -> tuple[str, Run]:
    """`mask_tokens`, `ELECTRAModel` and `ELECTRALoss` of pretrain.py, with its vanilla ELECTRA settings."""
    c = SimpleNamespace(sampling="fp32_gumbel", my_model=False)
    file, flat = "electra_pytorch/pretrain.py", nn.CrossEntropyLoss  # as CrossEntropyLossFlat, for flat logits
    code = definitions(
        file, "mask_tokens", "ELECTRAModel", "ELECTRALoss", c=c, F=nn.functional, CrossEntropyLossFlat=flat
    )
    generator, discriminator = tiny("ElectraForMaskedLM"), tiny("ElectraForPreTraining")
    head = discriminator.discriminator_predictions
    watches = Watch(generator, generator.generator_lm_head), Watch(discriminator, head)
    model = code["ELECTRAModel"](generator, discriminator, SimpleNamespace(pad_token_id=PAD))
    model.to("cpu")
    shares = {"mlm_probability": 0.15, "replace_prob": 0.0, "orginal_prob": 0.15}

    def run(tokens: Tensor, training: bool, _: int) -> Seen:
        inputs, labels, chosen = code["mask_tokens"](tokens.clone(), MASK, SIZE, [*range(5)], **shares)
        asked = model.train(training)(inputs, (tokens != PAD).sum(1), chosen, labels)
        return seen(code["ELECTRALoss"]()(asked, labels), *watches)

    return commit("electra_pytorch"), run

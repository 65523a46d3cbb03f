"""Every registered component obeys the laws of electra_lab.testing; a new component file is held to them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.testing import (
    BackboneContract,
    HeadContract,
    LauncherContract,
    MaskingContract,
    MeasureContract,
    ObjectiveContract,
    OptimizerContract,
    PackingContract,
    SamplerContract,
    ScheduleContract,
    vocabulary,
)
from electra_lab.testing.common import as_batch
from electra_lab.training.random import Streams
from registry import (
    Batch,
    Losses,
    backbones,
    heads,
    launchers,
    masking_strategies,
    measures,
    objectives,
    optimizers,
    packings,
    samplers,
    schedules,
)


def suite(contract: type, name: str, /, **options: Any) -> type:
    return type("Suite", (contract,), {"name": name, "options": options, "__module__": __name__})


class TestGumbel(SamplerContract):
    name = "gumbel"
    precisions = ("float32", "bfloat16", "float16", "autocast")  # one suite tries them all: the lab casts for everyone
    rounds = 2


TestTemperature = suite(SamplerContract, "temperature")


class TestGumbelHot(SamplerContract):
    name, options = "gumbel", {"temperature": 2.0}
    precisions = ()  # the small vocabulary shows what a temperature does

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits.double() / 2).softmax(-1)


TestTemperatureHot = suite(TestGumbelHot, "temperature", temperature=2.0)


class TestArgmax(SamplerContract):
    name = "argmax"

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(logits, dtype=torch.float64).index_fill(0, logits.argmax(-1), 1.0)


class TestTopK(SamplerContract):
    name, options = "top_k", {"k": 40, "temperature": 1.5}

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        likely = logits.double().argsort(descending=True, stable=True)[:40]
        kept = torch.full_like(logits, float("-inf"), dtype=torch.float64)
        kept[likely] = logits.double()[likely] / 1.5
        return kept.softmax(-1)


class TestTopKOfThree(SamplerContract):
    name, options = "top_k", {"k": 3}
    precisions = ()

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        third = logits.double().sort(descending=True).values[2]
        return logits.double().masked_fill(logits.double() < third, float("-inf")).softmax(-1)


class TestNucleus(SamplerContract):
    name, options = "nucleus", {"p": 0.8}
    rounds = 2  # it sorts the vocabulary for every draw

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        """Token by token, most likely first, until 0.8 are reached."""
        probabilities = logits.double().softmax(-1)
        kept, total = torch.zeros_like(probabilities), 0.0
        for token in probabilities.argsort(descending=True, stable=True).tolist():
            if total >= 0.8:
                break
            kept[token] = probabilities[token]
            total += float(probabilities[token])
        return kept / kept.sum()


TestReplaceProb = suite(MaskingContract, "replace_prob")
TestRandomToken = suite(MaskingContract, "random_token")


class TestWholeWord(MaskingContract):
    name, exact = "whole_word", False


class TestSpan(MaskingContract):
    name, exact = "span", False


class TestSpanUniform(TestSpan):
    options = {"length": "uniform", "longest": 3}  # noqa: RUF012  # read, never changed


TestBert = suite(BackboneContract, "bert")
TestTransformer = suite(BackboneContract, "transformer")


NEW = {"qk_norm": True, "value_residual": True, "softcap": 3.0}


class TestTransformerModern(BackboneContract):
    name = "transformer"
    options = dict(rotary=True, theta=5e4, rmsnorm=True, glu="swiglu", bias=False, **NEW)  # noqa: RUF012
    sizes = (64, 2, 2)


TestTransformerUnfused = suite(BackboneContract, "transformer", flash=False, **NEW)
TestTransformerLocalHeads = suite(BackboneContract, "transformer", local_heads=1, window=4, **NEW)
TestDeberta = suite(BackboneContract, "deberta", buckets=8, max_distance=12)
TestDebertaMaskDecoder = suite(BackboneContract, "deberta", buckets=8, max_distance=12, mask_decoder=True)
TestDebertaConvolution = suite(
    BackboneContract, "deberta", buckets=8, max_distance=12, convolution=3, share_projections=False
)
TestModernBert = suite(BackboneContract, "modernbert", local_attention=8, global_every=2, qk_norm=True)
TestHuggingFaceRoberta = suite(BackboneContract, "hugging_face", model_type="roberta")
TestHuggingFaceAlbert = suite(BackboneContract, "hugging_face", model_type="albert")
TestHuggingFaceGemma = suite(
    BackboneContract,
    "hugging_face",
    model_type="gemma3_text",
    config={"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
)
TestReformer = suite(BackboneContract, "reformer", bucket_size=4, hashes=2)
TestReformerLearnedPositions = suite(BackboneContract, "reformer", bucket_size=4, hashes=2, rotary=False)
TestReformerLocalHeads = suite(BackboneContract, "reformer", bucket_size=4, hashes=2, local_heads=1)


class TestReformerEverything(TestReformer):
    sizes = (32, 2, 4)
    options = dict(bucket_size=4, hashes=3, local_heads=1, memory=16, glu=True, reversible=True)  # noqa: C408, RUF012


# Slow: these are parts of the suites above.
TestReformerReversible = pytest.mark.slow(suite(BackboneContract, "reformer", bucket_size=4, hashes=2, reversible=True))
TestReformerMemory = pytest.mark.slow(suite(BackboneContract, "reformer", bucket_size=4, hashes=2, memory=8))
TestReformerGlu = pytest.mark.slow(suite(BackboneContract, "reformer", bucket_size=4, hashes=2, glu=True))
TestReformerLocalHeadsLearnedPositions = pytest.mark.slow(
    suite(BackboneContract, "reformer", bucket_size=4, local_heads=1, rotary=False)
)
TestTwoTowers = suite(BackboneContract, "two_towers")
TestPerformer = suite(BackboneContract, "performer", features=24)
TestPerformerLearnedPositions = suite(BackboneContract, "performer", features=24, rotary=False)
TestPerformerLocalHeads = suite(BackboneContract, "performer", features=24, local_heads=1, window=4)


class TestTokens(HeadContract):
    name, reads = "tokens", "masked"


class TestDebertaTokens(HeadContract):
    name, reads = "deberta_tokens", "masked"


class TestModernBertTokens(HeadContract):
    name, reads = "modernbert_tokens", "masked"


TestReplaced = suite(HeadContract, "replaced")
TestEnergy = suite(HeadContract, "energy")
TestDebertaReplaced = suite(HeadContract, "deberta_replaced")
TestModernBertReplaced = suite(HeadContract, "modernbert_replaced")
TestContrast = suite(HeadContract, "contrast")


class TestCandidates(HeadContract):
    name, reads, options = "candidates", "masked", {"k": 3}

    def inputs(self, states: torch.Tensor) -> tuple[Any, ...]:
        candidates = torch.arange(states.shape[1]).unsqueeze(1) + 5 * torch.arange(3)
        return (candidates.expand(len(states), -1, -1),)


class TestCandidatesOrNone(TestCandidates):
    reads, options = "positions", {"k": 3, "everywhere": True, "bias": False, "reject": True}


class TestReplacedBranch(HeadContract):
    name, options = "replaced_branch", {"depth": 2}

    def inputs(self, states: torch.Tensor) -> tuple[Any, ...]:
        return (torch.arange(states.shape[1]).expand(states.shape[:2]) < 9,)


TestElectra = suite(ObjectiveContract, "electra")


class TestElectraMaskedOnly(ObjectiveContract):
    name = "electra_masked_only"

    def judged(self, batch: Batch, chosen: torch.Tensor) -> torch.Tensor:
        return chosen


TestElectraCorrect = suite(ObjectiveContract, "electra_correct")
TestElectraCorrectCopy = suite(ObjectiveContract, "electra_correct", correction="copy")
TestCocoLm = suite(ObjectiveContract, "coco_lm", group=2)
TestMlm = suite(ObjectiveContract, "mlm")
TestReplaceMlm = suite(ObjectiveContract, "replace_mlm")
TestAllTokensMlm = suite(ObjectiveContract, "all_tokens_mlm")
TestMcBert = suite(ObjectiveContract, "mc_bert", k=4)
TestMcBertRedraw = suite(ObjectiveContract, "mc_bert", duplicates="redraw")


class TestTeams(ObjectiveContract):
    name, depths = "teams", (1, 2)


class TestTeamsOfTwo(ObjectiveContract):
    name, depths, options = "teams", (1, 3), {"below_top": 2, "k": 3}


TestTwoStage = suite(ObjectiveContract, "two_stage", generator_steps=3)


class TestTwoStageSecond(TestTwoStage):
    def build(self, **options: Any) -> Any:
        objective = super().build(**options)
        objective.at_step(0, 5)
        return objective


class TestFrozenGenerator(ObjectiveContract):
    name, options = "frozen_generator", {"run": Path("runs/earlier")}
    tie = "none"  # what the networks share would be frozen in both


class TestSas(ObjectiveContract):
    name = "sas"

    def predicted(self, maskable: torch.Tensor, losses: Losses) -> int:
        """The replaced tokens, and no more than are masked."""
        assert losses.detection is not None
        replaced = int(losses.detection.replaced.sum())
        assert replaced <= super().predicted(maskable, losses)
        return replaced


class TestSasEveryVisit(TestSas):
    options = {"remask": "every_visit", "disallow_correct": True}  # noqa: RUF012


TestAdversarial = suite(ObjectiveContract, "adversarial")


class TestElectric(ObjectiveContract):
    name, generator = "electric", "two_towers"

    def judged(self, batch: Batch, chosen: torch.Tensor) -> torch.Tensor:
        return batch.attention_mask & ~vocabulary(self.size).is_special[batch.tokens]


class TestAmos(ObjectiveContract):
    name, options = "amos", {"z_loss": 0.1}
    depths = 4, 1

    def test_a_sample_that_equals_the_original_is_original(self) -> None:
        """All exits of the generator are certain of the original."""
        objective, batch = self.build(), as_batch(torch.randint(5, self.size, (4, 20)))
        one_hot = torch.nn.functional.one_hot
        objective.generator.token_logits = lambda _, at: 1e4 * one_hot(batch.tokens.gather(1, at), self.size).float()
        losses = objective(batch, Streams(0, 0, batch.example_ids))
        assert not losses.detection.replaced.any()
        assert torch.equal(losses.detection.inputs, batch.tokens)


class TestAmosMixture(TestAmos):
    options = {"exits": [1, 4], "reverse_into": "mixture"}  # noqa: RUF012


TestLocal = suite(LauncherContract, "local")
TestFixedCorruption = suite(MeasureContract, "fixed_corruption", batch_size=8)
TestFixedCorruptionOfAll = suite(MeasureContract, "fixed_corruption", mask_prob=1.0, small=0.5, large=1.0, steps=5)
TestPretraining = suite(MeasureContract, "pretraining")
TestDownstream = suite(MeasureContract, "downstream", file=Path("sst2.yaml"), name="sst2")
TestDetectionProbe = suite(MeasureContract, "detection_probe", batch_size=8, rows=30)
TestAdamW = suite(OptimizerContract, "adamw")
TestAdamWWithoutDecay = suite(OptimizerContract, "adamw", weight_decay=0.0, betas=(0.5, 0.9))
TestAdafactor = suite(OptimizerContract, "adafactor")
TestAdamWNoBiasCorrection = suite(OptimizerContract, "adamw_no_bias_correction")
TestStableAdamW = suite(OptimizerContract, "stable_adamw")
TestStableAdamWDecoupled = suite(
    OptimizerContract, "stable_adamw", decoupled=True, weight_decay=1e-5, betas=(0.9, 0.98)
)
TestMuon = suite(OptimizerContract, "muon")
TestMuonOriginal = suite(OptimizerContract, "muon", adjust_lr_fn="original", nesterov=False, momentum=0.5, ns_steps=3)
TestContiguous = suite(PackingContract, "contiguous")
TestContiguousWithinDocuments = suite(PackingContract, "contiguous", attention="within_documents")
TestDocuments = suite(PackingContract, "documents")
TestSegments = suite(PackingContract, "segments")
TestSegmentsSingle = suite(PackingContract, "segments", single=1.0, short=0.5)
TestSegmentsShort = suite(PackingContract, "segments", single=0.0, short=1.0)
TestLinear = suite(ScheduleContract, "linear", start=2.0, end=0.5, until=0.3)
TestLinearInStages = suite(ScheduleContract, "linear", start=50.0, end=200.0, stages=5)
TestCosine = suite(ScheduleContract, "cosine", start=1.0, end=0.0)
TestExponential = suite(ScheduleContract, "exponential", start=2.0, end=1.0, rate=5.0)
TestWarmupLinear = suite(ScheduleContract, "warmup_linear", warmup_steps=100)
TestWarmupLinearWithoutWarmup = suite(ScheduleContract, "warmup_linear", warmup_steps=0)
TestConstant = suite(ScheduleContract, "constant")
TestConstantAfterWarmup = suite(ScheduleContract, "constant", warmup_steps=100)
TestWarmupStableDecay = suite(ScheduleContract, "warmup_stable_decay", warmup_steps=100, decay_share=0.2, end=0.1)
TestWarmupStableDecayByShares = suite(ScheduleContract, "warmup_stable_decay", warmup_share=0.1, shape="1-sqrt")
TestWarmupStableDecayCosine = suite(
    ScheduleContract, "warmup_stable_decay", warmup_steps=0, decay_share=1.0, shape="cosine"
)


SUITES = [
    suite for suite in list(globals().values()) if isinstance(suite, type) and {"name", "registry"} <= {*dir(suite)}
]


@pytest.mark.parametrize(
    "registry",
    [backbones, heads, masking_strategies, samplers, objectives, measures, optimizers, packings, schedules],
    ids=lambda r: r.plural,
)
def test_every_component_has_its_suite(registry) -> None:
    assert set(registry.names()) == {suite.name for suite in SUITES if suite.registry is registry}


def test_every_launcher_has_its_suite() -> None:
    here = {suite.name for suite in SUITES if suite.registry is launchers}
    folder = Path(__file__).parent / "electra_lab" / "launchers"
    elsewhere = {path.stem.removeprefix("test_cluster_") for path in folder.glob("test_cluster_*.py")}
    assert set(launchers.names()) == here | elsewhere

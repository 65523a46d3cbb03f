"""Every registered component obeys the laws of electra_lab.testing; a new component file is tested at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import registry
from electra_lab import testing
from electra_lab.testing import vocabulary
from electra_lab.testing.common import as_batch
from electra_lab.training.random import Streams
from registry import Batch, Losses


def suite(kind: str | type, name: str, /, **options: Any) -> type:
    """Return the suite of a component with options; `kind` is that of its contract, or a suite to change."""
    contract = kind if isinstance(kind, type) else getattr(testing, f"{kind}Contract")
    return type("Suite", (contract,), {"name": name, "options": options, "__module__": __name__})


def variant(kind: str | type, name: str, /, **options: Any) -> type:
    """Return another suite of an objective that has one: `make test` tests the metrics only in the first."""
    made = suite(kind, name, **options)
    if "ELECTRA_LAB_ALL" not in os.environ:
        made.test_metrics_are_those_of_the_rows = None  # type: ignore[attr-defined]
    return made


class TestGumbel(testing.SamplerContract):
    name = "gumbel"
    precisions = ("float32", "bfloat16", "float16", "autocast")  # in one suite: the lab casts for all samplers
    rounds = 2


TestTemperature = suite("Sampler", "temperature")


class TestGumbelHot(testing.SamplerContract):
    name, options = "gumbel", {"temperature": 2.0}
    precisions = ()  # the small vocabulary is enough to show the effect of a temperature

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits.double() / 2).softmax(-1)


TestTemperatureHot = suite(TestGumbelHot, "temperature", temperature=2.0)


class TestArgmax(testing.SamplerContract):
    name = "argmax"

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(logits, dtype=torch.float64).index_fill(0, logits.argmax(-1), 1.0)


class TestTopK(testing.SamplerContract):
    name, options = "top_k", {"k": 40, "temperature": 1.5}

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        likely = logits.double().argsort(descending=True, stable=True)[:40]
        kept = torch.full_like(logits, float("-inf"), dtype=torch.float64)
        kept[likely] = logits.double()[likely] / 1.5
        return kept.softmax(-1)


class TestTopKOfThree(testing.SamplerContract):
    name, options = "top_k", {"k": 3}
    precisions = ()

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        third = logits.double().sort(descending=True).values[2]
        return logits.double().masked_fill(logits.double() < third, float("-inf")).softmax(-1)


class TestNucleus(testing.SamplerContract):
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


TestReplaceProb = suite("Masking", "replace_prob")
TestRandomToken = suite("Masking", "random_token")


class TestWholeWord(testing.MaskingContract):
    name, exact = "whole_word", False


TestSpan = suite(TestWholeWord, "span")
TestSpanUniform = suite(TestWholeWord, "span", length="uniform", longest=3)
TestBert = suite("Backbone", "bert")
TestTransformer = suite("Backbone", "transformer")


NEW = {"qk_norm": True, "value_residual": True, "softcap": 3.0}


TestTransformerModern = suite(
    "Backbone", "transformer", rotary=True, theta=5e4, rmsnorm=True, glu="swiglu", bias=False, **NEW
)
TestTransformerModern.sizes = (64, 2, 2)
TestTransformerUnfused = suite("Backbone", "transformer", flash=False, **NEW)
TestTransformerLocalHeads = suite("Backbone", "transformer", local_heads=1, window=4, **NEW)
TestDeberta = suite("Backbone", "deberta", buckets=8, max_distance=12)
TestDebertaMaskDecoder = suite("Backbone", "deberta", buckets=8, max_distance=12, mask_decoder=True)
TestDebertaConvolution = suite(
    "Backbone", "deberta", buckets=8, max_distance=12, convolution=3, share_projections=False
)
TestModernBert = suite("Backbone", "modernbert", local_attention=8, global_every=2, qk_norm=True)
TestHuggingFaceRoberta = suite("Backbone", "hugging_face", model_type="roberta")
TestHuggingFaceAlbert = suite("Backbone", "hugging_face", model_type="albert")
GEMMA = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
TestHuggingFaceGemma = suite("Backbone", "hugging_face", model_type="gemma3_text", config=GEMMA)
TestReformer = suite("Backbone", "reformer", bucket_size=4, hashes=2)
TestReformerLearnedPositions = suite("Backbone", "reformer", bucket_size=4, hashes=2, rotary=False)
TestReformerLocalHeads = suite("Backbone", "reformer", bucket_size=4, hashes=2, local_heads=1)


TestReformerEverything = suite(
    "Backbone", "reformer", bucket_size=4, hashes=3, local_heads=1, memory=16, glu=True, reversible=True
)
TestReformerEverything.sizes = (32, 2, 4)
# Slow: these are parts of the suites above.
TestReformerReversible = pytest.mark.slow(suite("Backbone", "reformer", bucket_size=4, hashes=2, reversible=True))
TestReformerMemory = pytest.mark.slow(suite("Backbone", "reformer", bucket_size=4, hashes=2, memory=8))
TestReformerGlu = pytest.mark.slow(suite("Backbone", "reformer", bucket_size=4, hashes=2, glu=True))
TestReformerLocalHeadsLearnedPositions = pytest.mark.slow(
    suite("Backbone", "reformer", bucket_size=4, local_heads=1, rotary=False)
)
TestTwoTowers = suite("Backbone", "two_towers")
TestPerformer = suite("Backbone", "performer", features=24)
TestPerformerLearnedPositions = suite("Backbone", "performer", features=24, rotary=False)
TestPerformerLocalHeads = suite("Backbone", "performer", features=24, local_heads=1, window=4)


class TestTokens(testing.HeadContract):
    name, reads = "tokens", "masked"


TestDebertaTokens = suite(TestTokens, "deberta_tokens")
TestModernBertTokens = suite(TestTokens, "modernbert_tokens")
TestReplaced = suite("Head", "replaced")
TestEnergy = suite("Head", "energy")
TestDebertaReplaced = suite("Head", "deberta_replaced")
TestModernBertReplaced = suite("Head", "modernbert_replaced")
TestContrast = suite("Head", "contrast")


class TestCandidates(testing.HeadContract):
    name, reads, options = "candidates", "masked", {"k": 3}

    def inputs(self, states: torch.Tensor) -> tuple[Any, ...]:
        candidates = torch.arange(states.shape[1]).unsqueeze(1) + 5 * torch.arange(3)
        return (candidates.expand(len(states), -1, -1),)


class TestCandidatesOrNone(TestCandidates):
    reads, options = "positions", {"k": 3, "everywhere": True, "bias": False, "reject": True}


class TestReplacedBranch(testing.HeadContract):
    name, options = "replaced_branch", {"depth": 2}

    def inputs(self, states: torch.Tensor) -> tuple[Any, ...]:
        return (torch.arange(states.shape[1]).expand(states.shape[:2]) < 9,)


TestElectra = suite("Objective", "electra")


class TestElectraMaskedOnly(testing.ObjectiveContract):
    name = "electra_masked_only"

    def judged(self, batch: Batch, chosen: torch.Tensor) -> torch.Tensor:
        return chosen


TestElectraCorrect = suite("Objective", "electra_correct")
TestElectraCorrectCopy = variant("Objective", "electra_correct", correction="copy")
TestCocoLm = suite("Objective", "coco_lm", group=2)
TestMlm = suite("Objective", "mlm")
TestReplaceMlm = suite("Objective", "replace_mlm")
TestAllTokensMlm = suite("Objective", "all_tokens_mlm")
TestMcBert = suite("Objective", "mc_bert", k=4)
TestMcBertRedraw = variant("Objective", "mc_bert", duplicates="redraw")


TestTeams, TestTeamsOfTwo = suite("Objective", "teams"), variant("Objective", "teams", below_top=2, k=3)
TestTeams.depths, TestTeamsOfTwo.depths = (1, 2), (1, 3)
TestTwoStage = suite("Objective", "two_stage", generator_steps=3)


class TestTwoStageSecond(TestTwoStage):
    def build(self, **options: Any) -> Any:
        objective = super().build(**options)
        objective.at_step(0, 5)
        return objective


class TestFrozenGenerator(testing.ObjectiveContract):
    name, options = "frozen_generator", {"run": Path("runs/earlier")}
    tie = "none"  # shared weights would be frozen in both networks


class TestSas(testing.ObjectiveContract):
    name = "sas"

    def predicted(self, maskable: torch.Tensor, losses: Losses) -> int:
        """The replaced tokens, at most the number of masked ones."""
        assert losses.detection is not None
        replaced = int(losses.detection.replaced.sum())
        assert replaced <= super().predicted(maskable, losses)
        return replaced


TestSasEveryVisit = variant(TestSas, "sas", remask="every_visit", disallow_correct=True)
TestAdversarial = suite("Objective", "adversarial")


class TestElectric(testing.ObjectiveContract):
    name, generator = "electric", "two_towers"

    def judged(self, batch: Batch, chosen: torch.Tensor) -> torch.Tensor:
        return batch.attention_mask & ~vocabulary(self.size).is_special[batch.tokens]


class TestAmos(testing.ObjectiveContract):
    name, options = "amos", {"z_loss": 0.1}
    depths = 4, 1

    def test_a_sample_that_equals_the_original_is_original(self) -> None:
        """All exits of the generator predict the original with certainty."""
        objective, batch = self.build(), as_batch(torch.randint(5, self.size, (4, 20)))
        one_hot = torch.nn.functional.one_hot
        objective.generator.token_logits = lambda _, at: 1e4 * one_hot(batch.tokens.gather(1, at), self.size).float()
        losses = objective(batch, Streams.of(0, 0, batch.example_ids))
        assert not losses.detection.replaced.any()
        assert torch.equal(losses.detection.inputs, batch.tokens)


TestAmosMixture = suite(TestAmos, "amos", exits=[1, 4], reverse_into="mixture")
TestLocal = suite("Launcher", "local")
TestFixedCorruption = suite("Measure", "fixed_corruption", batch_size=8)
TestFixedCorruptionOfAll = pytest.mark.slow(  # as the one above, which is quicker
    suite("Measure", "fixed_corruption", mask_prob=1.0, small=0.5, large=1.0, steps=5)
)
TestPretraining = suite("Measure", "pretraining")
TestDownstream = suite("Measure", "downstream", file=Path("sst2.yaml"), name="sst2")
TestDetectionProbe = suite("Measure", "detection_probe", batch_size=8, rows=30)
TestAdamW = suite("Optimizer", "adamw")
TestAdamWWithoutDecay = suite("Optimizer", "adamw", weight_decay=0.0, betas=(0.5, 0.9))
TestAdafactor = suite("Optimizer", "adafactor")
TestAdamWNoBiasCorrection = suite("Optimizer", "adamw_no_bias_correction")
TestStableAdamW = suite("Optimizer", "stable_adamw")
TestStableAdamWDecoupled = suite("Optimizer", "stable_adamw", decoupled=True, weight_decay=1e-5, betas=(0.9, 0.98))
TestMuon = suite("Optimizer", "muon")
TestMuonOriginal = suite("Optimizer", "muon", adjust_lr_fn="original", nesterov=False, momentum=0.5, ns_steps=3)
TestContiguous = suite("Packing", "contiguous")
TestContiguousWithinDocuments = suite("Packing", "contiguous", attention="within_documents")
TestDocuments = suite("Packing", "documents")
TestSegments = suite("Packing", "segments")
# Slow: the suite above has rows of these kinds.
TestSegmentsSingle = pytest.mark.slow(suite("Packing", "segments", single=1.0, short=0.5))
TestSegmentsShort = pytest.mark.slow(suite("Packing", "segments", single=0.0, short=1.0))
TestLinear = suite("Schedule", "linear", start=2.0, end=0.5, until=0.3)
TestLinearInStages = suite("Schedule", "linear", start=50.0, end=200.0, stages=5)
TestCosine = suite("Schedule", "cosine", start=1.0, end=0.0)
TestExponential = suite("Schedule", "exponential", start=2.0, end=1.0, rate=5.0)
TestWarmupLinear = suite("Schedule", "warmup_linear", warmup_steps=100)
TestWarmupLinearWithoutWarmup = suite("Schedule", "warmup_linear", warmup_steps=0)
TestConstant = suite("Schedule", "constant")
TestConstantAfterWarmup = suite("Schedule", "constant", warmup_steps=100)
TestWarmupStableDecay = suite("Schedule", "warmup_stable_decay", warmup_steps=100, decay_share=0.2, end=0.1)
TestWarmupStableDecayByShares = suite("Schedule", "warmup_stable_decay", warmup_share=0.1, shape="1-sqrt")
TestWarmupStableDecayCosine = suite("Schedule", "warmup_stable_decay", warmup_steps=0, decay_share=1.0, shape="cosine")


SUITES = [
    suite for suite in list(globals().values()) if isinstance(suite, type) and {"name", "registry"} <= {*dir(suite)}
]
ELSEWHERE = ("generators", "corpora", "datasets", "tasks", "tokenizers", "trackers", "launchers")


@pytest.mark.parametrize("components", [r for r in registry.ALL if r.plural not in ELSEWHERE], ids=lambda r: r.plural)
def test_every_component_has_its_suite(components: registry.Registry[Any]) -> None:
    assert set(components.names()) == {suite.name for suite in SUITES if suite.registry is components}


def test_every_launcher_has_its_suite() -> None:
    here = {suite.name for suite in SUITES if suite.registry is registry.launchers}
    folder = Path(__file__).parent / "electra_lab" / "launchers"
    elsewhere = {path.stem.removeprefix("test_cluster_") for path in folder.glob("test_cluster_*.py")}
    assert set(registry.launchers.names()) == here | elsewhere

"""The drop-in classes: the interface of electra-pytorch and mlm-pytorch, their numbers where correct, any ids."""

import copy
import inspect
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from electra_lab.interop import electra_pytorch as interop
from electra_lab.interop.electra_pytorch import Electra, Results
from electra_lab.testing import CLS, MASK, PAD, SEP
from tests.electra_lab.interop import networks as net

PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])


SIGNATURES = [f"{kind}.{method}" for kind in ("Electra", "MLM") for method in ("__init__", "forward")]
SIGNATURES += ["HiddenLayerExtractor", "gumbel_sample", "get_mask_subset_with_prob"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_begin_as_theirs(name: str) -> None:
    package: Any = net.mlm_seed if name.startswith("MLM") else net.electra_seed
    theirs, ours = (inspect.signature(attrgetter(name)(module)).parameters for module in (package, interop))
    expected = [(p.name, p.kind, p.default or None) for p in theirs.values()]
    assert [(p.name, p.kind, p.default or None) for p in ours.values() if p.name != "seed"] == expected


@net.BOTH_KINDS
def test_results_and_attributes_have_their_names(kind: str) -> None:
    assert Results._fields == net.electra_seed.Results._fields
    attributes = {name for name in vars(net.build(net.THEIRS, kind)[0]) if name[0] != "_"}
    assert attributes <= set(vars(net.build(net.OURS, kind)[0]))


@PRECISIONS
@pytest.mark.parametrize("magic", [{}, {"discr_dim": 8}, {"discr_dim": 8, "discr_layer": "mix"}])
def test_losses_and_gradients_are_those_of_electra_pytorch(
    monkeypatch: pytest.MonkeyPatch, magic: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    """With our masks and samples. Rows have [CLS], [SEP] and padding; the two networks share their table."""
    tokens = net.text()
    options = {} if magic else {"mask": tokens != PAD}
    torch.manual_seed(0)
    generator, discriminator = net.Tiny(net.SIZE).to(dtype), net.Tiny(8 if magic else 1).to(dtype)
    generator.table = discriminator.table
    ours = Electra(generator, discriminator, replace_prob=1.0, **net.IDS, **magic).to(dtype)
    theirs = net.THEIRS.Electra(generator, discriminator, **net.IDS, **magic).to(dtype)
    networks: list[nn.Module] = [generator, discriminator]
    if magic:
        theirs.discriminator[1] = ours.discriminator.head
        networks.append(ours.discriminator.head)
    for _ in range(2):
        results = ours(tokens, **options)
        net.give_them_the_choices_of(ours, tokens, monkeypatch)
        reference = theirs(tokens, **options)
        for name in ("loss", "mlm_loss", "disc_loss"):
            loss, known = getattr(results, name), getattr(reference, name)
            torch.testing.assert_close(loss, known, rtol=tolerance, atol=0)
            net.assert_same_gradients(net.gradients(networks, loss), net.gradients(networks, known), tolerance)
        for name in ("gen_acc", "disc_labels", "disc_predictions"):
            assert torch.equal(getattr(results, name), getattr(reference, name))


@PRECISIONS
def test_the_loss_and_its_gradients_are_those_of_mlm_pytorch(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float
) -> None:
    tokens, (ours, network) = net.text(), net.build(net.OURS, "MLM", replace_prob=1.0)
    ours, theirs = ours.to(dtype), net.THEIRS.MLM(network, **net.IDS)
    loss = ours(tokens)
    found = net.gradients([network], loss)
    net.give_them_the_choices_of(ours, tokens, monkeypatch)
    known = theirs(tokens)
    torch.testing.assert_close(loss, known, rtol=tolerance, atol=0)
    net.assert_same_gradients(found, net.gradients([network], known), tolerance)


@PRECISIONS
def test_the_reformer_recipe_has_the_gradients_of_electra_pytorch(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float
) -> None:
    """LSH attention, reversible layers, tied embeddings, features by a hook; also when the forward pass ends early."""
    tokens = net.row(0, 32, 0)
    generator, discriminator = (net.watch(network.to(dtype)) for network in net.pair())
    ours = Electra(generator, discriminator, replace_prob=1.0, **net.IDS, **net.MAGIC).to(dtype)
    theirs = net.THEIRS.Electra(generator, discriminator, **net.IDS, **net.MAGIC)
    theirs.discriminator[1] = head = ours.discriminator.head
    for step in range(2):
        torch.manual_seed(step)  # for the rotations, the only numbers that ours draws from it
        result = ours(tokens)
        found = net.gradients([generator, discriminator, head], result.loss)
        with monkeypatch.context() as patch:
            net.give_them_the_choices_of(ours, tokens, patch)
            torch.manual_seed(step)
            known = theirs(tokens)
        torch.testing.assert_close(result.loss, known.loss, rtol=tolerance, atol=0)
        net.assert_same_gradients(found, net.gradients([generator, discriminator, head], known.loss), tolerance)
        discriminator.reformer._forward_hooks.clear()  # theirs is never removed (B13)
        theirs.discriminator[0].hook_registered = False


def test_weights_and_settings_are_read_at_every_call() -> None:
    tokens, (trainer, network) = net.text(), net.build(net.OURS, "Electra", replace_prob=1.0)
    results = trainer(tokens)
    torch.testing.assert_close(results.loss, results.mlm_loss + 50 * results.disc_loss)
    trainer.gen_weight, trainer.disc_weight, trainer.mask_prob = 2.0, 3.0, 1.0
    results = trainer(tokens)
    torch.testing.assert_close(results.loss, 2 * results.mlm_loss + 3 * results.disc_loss)
    assert (network.seen[(tokens > 4)] == MASK).all()
    for temperature in (0.0, 1e-6):  # the latter is too low for any other token
        trainer.temperature = temperature
        trainer(tokens)
        guess = network(network.seen).index_fill(-1, torch.tensor([PAD, CLS, SEP, MASK]), float("-inf")).argmax(-1)
        assert torch.equal(trainer.discriminator.seen, torch.where(tokens > 4, guess, tokens))


def test_evaluation_of_a_row_depends_on_neither_batch_nor_padding() -> None:
    """Its masks and draws depend only on its tokens; different rows get different ones."""
    tokens, (trainer, network) = net.text(), net.build(net.OURS, "Electra", replace_prob=1.0)
    trainer.eval()
    alone = []
    for part in (tokens, tokens[2:3], tokens[2:3, :15], tokens.flip(0)):
        trainer(part)
        alone.append((network.seen, trainer.discriminator.seen))
    for whole, row, short, flipped in zip(*alone, strict=True):
        assert torch.equal(whole[2:3], row)
        assert torch.equal(whole[2:3, :15], short)
        assert torch.equal(whole, flipped.flip(0))
    assert len({tuple(line.tolist()) for line in (alone[0][0] == MASK)}) > 1


def test_ranks_draw_as_one_process_draws_for_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, (trainer, network) = net.text(), net.build(net.OURS, "Electra")
    trainer(tokens)
    whole = network.seen, trainer.discriminator.seen
    parts = []
    for rank in range(2):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        trainer.step = 0
        trainer(tokens[rank * 3 : rank * 3 + 3])
        parts.append((network.seen, trainer.discriminator.seen))
    for joined, first, second in zip(whole, *parts, strict=True):
        assert torch.equal(joined, torch.cat([first, second]))


MIXED = {"discr_dim": 8, "discr_layer": "mix"}


@pytest.mark.parametrize(("kind", "magic"), [("Electra", {}), ("Electra", MIXED), ("MLM", {})])
def test_checkpoints_of_theirs_load(kind: str, magic: dict[str, Any]) -> None:
    theirs, ours = (net.build(package, kind, **magic)[0] for package in (net.THEIRS, net.OURS))
    if magic:
        theirs.discriminator[0].net, ours.discriminator.net = net.Tiny(8), net.Tiny(8)
    for parameter in theirs.parameters():
        parameter.data += 1
    ours.step = 7
    ours.load_state_dict(theirs.state_dict())
    assert ours.step == 0
    assert all(torch.equal(mine, other) for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_checkpoints_of_ours_hold_the_step_as_a_tensor() -> None:
    again, ours = (net.build(net.OURS, "MLM")[0] for _ in range(2))
    ours(net.text())
    assert all(isinstance(value, Tensor) for value in ours.state_dict().values())
    nn.ModuleDict({"inside": again}).load_state_dict(nn.ModuleDict({"inside": ours}).state_dict())
    assert again.step == copy.deepcopy(ours).step == 1


def test_a_discriminator_called_0_and_1_is_not_renamed() -> None:
    def trainer() -> Electra:
        return Electra(net.Tiny(net.SIZE), nn.Sequential(nn.Sequential(net.Tiny(8)), nn.Linear(8, 1)), **net.IDS)

    first, second = trainer(), trainer()
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_outputs_of_transformers_need_no_adapter() -> None:
    """Logits in an output object; layers that return a tuple or an output object; layers by index from either end."""
    sizes = {"vocab_size": net.SIZE, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 2,
             "intermediate_size": 16}  # fmt: skip
    torch.manual_seed(0)
    config = ElectraConfig(**sizes, num_attention_heads=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    generator, discriminator = ElectraForMaskedLM(config), ElectraForPreTraining(config)
    tokens = net.text()
    options = {"attention_mask": (tokens != PAD).long(), "token_type_ids": torch.zeros_like(tokens)}
    plain = Electra(generator, discriminator, **net.IDS)(tokens, **options)
    adapted = Electra(net.First(generator), net.First(discriminator), **net.IDS)(tokens, **options)
    assert torch.equal(plain.loss, adapted.loss)
    body = discriminator.electra
    for layer in ("encoder", "encoder.layer.1", 1, -1):
        trainer = Electra(generator, body, discr_dim=16, discr_layer=layer, **net.IDS)
        trainer.discriminator.head.load_state_dict({"weight": torch.ones(1, 16), "bias": torch.zeros(1)})
        losses = []
        for _ in range(2):
            trainer.step = 0
            losses.append(trainer(tokens, **options).loss)
        assert torch.equal(*losses), "the first call, and one that leaves early"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mask_prob": 1.5}, "mask_prob must be between 0 and 1, is 1.5"),
    ({"random_token_prob": 0.1}, "random_token_prob needs num_tokens"),
    ({"temperature": -1.0}, "temperature must be 0 or more"),
    ({"temperature": float("nan")}, "temperature must be 0 or more"),
    *(({"discr_dim": 8, "discr_layer": name}, f"no layer {name!r}. It has: table, mix, out") for name in ("a", 3, "")),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_mistakes_are_refused_at_construction(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        net.build(net.OURS, "Electra", **options)


def test_a_sigmoid_before_the_loss_is_warned_of() -> None:
    """As in electra-pytorch's own test; the loss takes logits."""
    with pytest.warns(UserWarning, match="ends in a Sigmoid") as caught:
        Electra(net.Tiny(net.SIZE), nn.Sequential(net.Tiny(8), nn.Linear(8, 1), nn.Sigmoid()), **net.IDS)
    assert caught[0].filename == __file__


def test_data_parallel_is_refused() -> None:
    """Its replicas are discarded after each call, and with them the step: every step would have the same masks."""
    trainer, _ = net.build(net.OURS, "MLM")
    trainer._is_replica = True
    with pytest.raises(RuntimeError, match="use DistributedDataParallel"):
        trainer(net.text())


def test_compiled_it_does_the_same() -> None:
    """Two breaks: the step is hashed on the host, and the vocabulary is kept between calls."""
    trainer, _ = net.build(net.OURS, "Electra")
    tokens, graphs = net.text(), CompileCounter()
    compiled = torch.compile(copy.deepcopy(trainer), backend=graphs)
    assert [trainer(tokens).loss for _ in range(3)] == [compiled(tokens).loss for _ in range(3)]
    assert graphs.frame_count <= 3


def test_what_evaluation_made_in_inference_mode_serves_training() -> None:
    interop._vocabulary.cache_clear()
    interop._ids.cache_clear()
    tokens, (trainer, _) = net.text(), net.build(net.OURS, "Electra")
    with torch.inference_mode():
        trainer.eval()(tokens)
    trainer.train()(tokens).loss.backward()


def test_networks_keep_their_modes() -> None:
    trainer, network = net.build(net.OURS, "Electra")
    network.mix.eval()
    trainer(net.text())
    assert (network.mix.training, network.out.training, trainer.training) == (False, True, True)


def test_int32_tokens_and_ids_outside_the_vocabulary() -> None:
    trainer, _ = net.build(net.OURS, "Electra", pad_token_id=-100, mask_ignore_token_ids=[CLS, SEP, 99])
    trainer(net.row(0, 20, 0).int()).loss.backward()


class Spacious(net.Tiny):
    """Takes any id: ids without a logit share one row of the table."""

    def __init__(self, width: int) -> None:
        super().__init__(width, net.SIZE + 1)

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        states = super().forward(tokens.where((tokens >= 0) & (tokens < net.SIZE), net.SIZE), **options)
        self.seen = tokens
        return states


# Ids for padding, [CLS], [SEP] and [MASK]. The networks have logits for 0 to SIZE - 1.
IDS = [*((pad, CLS, SEP, MASK) for pad in (net.SIZE, -1, -100, 2**40)), (PAD, net.SIZE + 1, -7, MASK)]
IDS += [(PAD, CLS, SEP, MASK), (PAD, CLS, SEP, net.SIZE), (net.SIZE, net.SIZE + 1, net.SIZE + 2, net.SIZE + 3)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("ids", IDS)
@net.BOTH_KINDS
def test_special_tokens_need_no_logit(monkeypatch: Any, kind: str, ids: Any, training: bool) -> None:
    tokens, (pad, cls, sep, mask) = net.text(padding=12), ids
    tokens[:, 4] = MASK
    special = tokens < 5
    for plain, outside in zip((PAD, CLS, SEP, MASK), ids, strict=True):
        tokens[special & (tokens == plain)] = outside
    torch.manual_seed(0)
    networks: list[Any] = [Spacious(net.SIZE).double(), *([Spacious(1).double()] if kind == "Electra" else [])]
    options = {"mask_token_id": mask, "pad_token_id": pad, "mask_ignore_token_ids": [cls, sep]}
    ours = getattr(net.OURS, kind)(*networks, mask_prob=0.6, replace_prob=1.0, **options).train(training)
    theirs = getattr(net.THEIRS, kind)(*networks, **options)
    result = ours(tokens)
    found, shown = net.gradients(networks, net.loss_of(result)), [network.seen for network in networks]
    assert all(torch.equal(seen[special], tokens[special]) for seen in shown)
    assert (shown[0] != tokens).any(1).all(), "every row must have masked tokens"
    net.give_them_the_choices_of(ours, tokens, monkeypatch)
    two = theirs(tokens)
    torch.testing.assert_close(net.loss_of(result), net.loss_of(two), rtol=1e-9, atol=0)
    net.assert_same_gradients(found, net.gradients(networks, net.loss_of(two)), 1e-9)
    assert all(torch.equal(seen, network.seen) for seen, network in zip(shown, networks, strict=True))
    if kind == "Electra":
        for name in ("gen_acc", "disc_labels", "disc_predictions"):
            assert torch.equal(getattr(result, name), getattr(two, name))


@net.BOTH_KINDS
def test_what_a_mask_calls_padding_may_be_anything(kind: str) -> None:
    """Also ids without a logit that differ from pad_token_id; the networks read them, and nothing else changes."""
    plain = net.text(padding=12)
    real, losses = plain != PAD, []
    torch.manual_seed(0)
    networks: list[Any] = [Spacious(net.SIZE), *([Spacious(1)] if kind == "Electra" else [])]
    trainer = getattr(net.OURS, kind)(*networks, mask_prob=0.6, **net.IDS)
    for padding in (PAD, 7, net.SIZE, -1):
        trainer.step = 0
        result = trainer(plain.where(real, padding), mask=real)
        losses.append(net.loss_of(result).detach())
        assert all((network.seen[~real] == padding).all() for network in networks)
        assert kind == "MLM" or not result.disc_labels[~real].any()
    assert len({float(loss) for loss in losses}) == 1


@net.BOTH_KINDS
def test_an_ordinary_token_without_a_logit_is_an_error(kind: str) -> None:
    """As in theirs: a target that the network cannot predict must not be replaced by another."""
    tokens = net.row(0, 20, 0)
    tokens[:, 3] = net.SIZE
    for package in (net.THEIRS, net.OURS):
        with pytest.raises(IndexError, match="out of bounds"):
            net.build(package, kind, Spacious(net.SIZE), mask_prob=1.0)[0](tokens)


def test_a_mask_of_floats_is_not_read_as_padding() -> None:
    """It may be an additive attention mask, where 0 means real."""
    tokens = net.text()
    assert torch.equal(interop._real(tokens, PAD, {"attention_mask": torch.zeros(tokens.shape)}), tokens != PAD)
    assert torch.equal(interop._real(tokens, PAD, {"mask": torch.ones(20, 20, dtype=torch.bool)}), tokens != PAD)
    both = {"mask": tokens != SEP, "input_mask": (tokens != CLS).long()}
    assert torch.equal(interop._real(tokens, PAD, both), (tokens != SEP) & (tokens != CLS))

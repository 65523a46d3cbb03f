"""electra-pytorch 0.1.2 and mlm-pytorch 0.1.0, driven by the lab's own objectives. Scripts move by their import line:

    from electra_lab.interop.electra_pytorch import MLM, Electra

The networks are any modules that take tokens. docs/interop.md lists the differences.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from electra_lab.interop._networks import Detector, Guess, HiddenLayerExtractor, Verdict, tie
from electra_lab.training.random import EVALUATION, Streams, digest, mix_
from registry import Batch, Losses, Masked, Random, Vocabulary, masking_strategies, objectives, samplers

__all__ = ["MLM", "Electra", "HiddenLayerExtractor", "Results", "get_mask_subset_with_prob", "gumbel_sample", "tie"]

_objectives: Any = objectives  # called with stand-ins for networks
_electra, _mlm = (_objectives.get(name).component for name in ("electra", "mlm"))
_masking = masking_strategies.get("replace_prob").component
_gumbel, _argmax = (samplers.get(name).component for name in ("gumbel", "argmax"))

# The keyword arguments that say, in x-transformers, reformer-pytorch and transformers, which tokens are real.
PADDING_MASKS = ("mask", "input_mask", "attention_mask")


class _Global(Random):
    """Numbers from torch's global generator, for functions that scripts call by themselves."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def uniform(self, rows: int, *shape: int) -> Float[Tensor, " rows *shape"]:
        return torch.rand(rows, *shape, device=self._device).mul_(1 - 2.0**-23).add_(2.0**-24)


def gumbel_sample(t: Float[Tensor, "*shape V"], temperature: float = 1.0) -> Int[Tensor, "*shape"]:
    """Draw one token from softmax(t / temperature) for each row of logits; a temperature of 0 takes the most likely."""
    flat = t.float().reshape(-1, t.shape[-1])
    options = {"temperature": temperature} if temperature else {}
    return (_gumbel if temperature else _argmax)(flat, _Global(t.device), **options).view(t.shape[:-1])


def get_mask_subset_with_prob(mask: Bool[Tensor, "B T"], prob: float) -> Bool[Tensor, "B T"]:
    """Choose exactly ceil(prob * m) of each row's m True positions, every subset equally likely."""
    words = _vocabulary(1, (), -1, mask.device)
    chosen = _masking(torch.zeros_like(mask, dtype=torch.long), mask, words, _Global(mask.device), mask_prob=prob)
    return torch.zeros_like(mask).scatter(1, chosen.positions, chosen.valid)


class Results(NamedTuple):
    """The result of a call of Electra."""

    loss: Float[Tensor, ""]  # gen_weight * mlm_loss + disc_weight * disc_loss
    mlm_loss: Float[Tensor, ""]  # of the generator, in nats, over the masked tokens
    disc_loss: Float[Tensor, ""]  # of the discriminator, over the real tokens
    gen_acc: Float[Tensor, ""]  # the share of the masked tokens that the generator puts first; 0 if there are none
    # The mean of the accuracies on replaced and on original tokens, without padding; if one kind is missing, the other.
    disc_acc: Float[Tensor, ""]
    disc_labels: Float[Tensor, "B T"]  # 1 where the token was replaced by another one
    disc_predictions: Float[Tensor, "B T"]  # 1 where the discriminator predicts that


class _Trainer(nn.Module):
    """The common part of Electra and MLM: the settings, which are read at every call, and the random numbers.

    Masks and draws depend on the seed, the number of training calls so far (`step`, in the state_dict) and the row's
    place in the global batch; torch's global generator plays no part. In eval mode they depend on the seed and on the
    content of the row, and the networks draw from a separate generator, so the same text gives the same loss.
    """

    def __init__(
        self,
        mask_prob: float,
        replace_prob: float,
        num_tokens: int | None,
        random_token_prob: float,
        mask_token_id: int,
        pad_token_id: int | None,
        mask_ignore_token_ids: Iterable[int],
        seed: int,
    ) -> None:
        super().__init__()
        shares = {"mask_prob": mask_prob, "replace_prob": replace_prob, "random_token_prob": random_token_prob}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ValueError(f"{name} must be between 0 and 1, is {share}.")
        if random_token_prob > 0 and num_tokens is None:
            raise ValueError("random_token_prob needs num_tokens, the size of the vocabulary to draw from.")
        self.mask_prob, self.replace_prob = mask_prob, replace_prob
        self.num_tokens, self.random_token_prob = num_tokens, random_token_prob
        self.mask_token_id, self.pad_token_id = mask_token_id, pad_token_id
        self.mask_ignore_token_ids = {*mask_ignore_token_ids, *([] if pad_token_id is None else [pad_token_id])}
        self.seed, self.step = seed, 0
        self.register_load_state_dict_pre_hook(_from_electra_pytorch)  # type: ignore[no-untyped-call]

    def get_extra_state(self) -> Int[Tensor, ""]:
        """Return the step as a tensor, so that a state_dict holds nothing else."""
        return torch.tensor(self.step)

    def set_extra_state(self, state: Int[Tensor, ""]) -> None:
        self.step = int(state)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the step is hashed on the host
    def _start(self, tokens: Int[Tensor, "B T"], options: Mapping[str, Any]) -> tuple[Batch, Masked, Streams]:
        """Return the batch of this call as objectives see it, masked, and its random numbers. Counts the step."""
        if getattr(self, "_is_replica", False):
            raise RuntimeError("nn.DataParallel loses the step count; use DistributedDataParallel.")
        real = _real(tokens, self.pad_token_id, options)
        if self.training:
            distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            first = torch.distributed.get_rank() * len(tokens) if distributed else 0
            step, examples = self.step, torch.arange(first, first + len(tokens), device=tokens.device)
            self.step += 1
        else:
            step, examples = EVALUATION, _contents(tokens, real)
        rng = Streams.of(self.seed, step, examples)
        # A network shows the size of its vocabulary only with its first logits; here one ordinary token is enough.
        words = self._vocabulary(self.num_tokens or len(self._special()) + 1, tokens.device)
        # Exactly ceil(mask_prob * m) of each row's m maskable tokens. Of these, random_token_prob become random tokens,
        # 1 - replace_prob stay, all others become [MASK]. If random_token_prob is the larger, nothing becomes [MASK],
        # and tokens that do not become random stay.
        maskable = real & ~torch.isin(tokens, _ids(self._special(), tokens.device))
        masked: Masked = _masking(
            tokens, maskable, words, rng("masking"), mask_prob=self.mask_prob,
            replace_prob=max(0.0, self.replace_prob - self.random_token_prob), random_prob=self.random_token_prob,
        )  # fmt: skip
        # Padding and special tokens need no logit in a user's network, but objectives look up every id of the text.
        # Those ids are never predicted, so any id with a logit will do.
        return Batch(tokens.masked_fill(~maskable, 0), real, torch.zeros_like(tokens), examples), masked, rng

    def _special(self) -> tuple[int, ...]:
        """Never masked, never put in at random, never drawn. [MASK] is one of them."""
        pad = [] if self.pad_token_id is None else [self.pad_token_id]
        return tuple(sorted({*self.mask_ignore_token_ids, self.mask_token_id, *pad}))

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it is kept from call to call
    def _vocabulary(self, size: int, device: torch.device) -> Vocabulary:
        return _vocabulary(size, self._special(), self.mask_token_id, device)

    def _generator_of_networks(self, device: torch.device) -> Any:
        """Make the networks' draws from torch's global generator (LSH rotations) constant in eval mode."""
        return nullcontext() if self.training else _own_generator(digest("networks", self.seed), device)


class Electra(_Trainer):
    """Replaced token detection with any two networks: the lab's objective `electra` behind electra-pytorch's API.

    generator      tokens to vocabulary logits [B T V]
    discriminator  tokens to one logit per position, [B T] or [B T 1]; or, with `discr_dim`, any network
    discr_dim      the width of the output of `discr_layer`, on which a Linear(discr_dim, 1) is put
    discr_layer    the name of a module of the discriminator, the index of one of its children, or -1 for its output
    temperature    temperature of the softmax that replacements are drawn from; 0 takes the most likely token
    pad_token_id   id of padding; None if every token is real
    seed           seed of masks and draws

    Keyword arguments of a call go to both networks. One of `mask`, `input_mask` and `attention_mask` that is boolean
    or integer, of the tokens' shape, also says which tokens are real; without one, those that differ from pad_token_id.
    """

    def __init__(
        self,
        generator: nn.Module,
        discriminator: nn.Module,
        *,
        num_tokens: int | None = None,
        discr_dim: int = -1,
        discr_layer: str | int = -1,
        mask_prob: float = 0.15,
        replace_prob: float = 0.85,
        random_token_prob: float = 0.0,
        mask_token_id: int = 2,
        pad_token_id: int | None = 0,
        mask_ignore_token_ids: Iterable[int] = (),
        disc_weight: float = 50.0,
        gen_weight: float = 1.0,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            mask_prob, replace_prob, num_tokens, random_token_prob, mask_token_id, pad_token_id, mask_ignore_token_ids,
            seed,
        )  # fmt: skip
        if not temperature >= 0:
            raise ValueError(f"temperature must be 0 or more, is {temperature}.")
        if isinstance(discriminator, nn.Sequential) and isinstance(discriminator[-1], nn.Sigmoid):
            warnings.warn(
                "the discriminator ends in a Sigmoid, but the loss takes logits and applies one itself: remove it.",
                stacklevel=2,
            )
        self.generator, self.discriminator = generator, discriminator
        self.disc_weight, self.gen_weight, self.temperature = disc_weight, gen_weight, temperature
        if discr_dim > 0:
            self.discriminator = Detector(discriminator, discr_dim, discr_layer)
            # Modules after the layer never get a gradient, for which DDP would wait in vain.
            unused: list[str] = []
            for name, module in self.discriminator.after():
                named = module.named_parameters(f"discriminator.net.{name}", remove_duplicate=False)
                unused += [parameter for parameter, _ in named]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self, unused)  # type: ignore[no-untyped-call]

    def forward(self, input: Int[Tensor, "B T"], **kwargs: Any) -> Results:
        tokens = input.long()
        batch, masked, rng = self._start(tokens, kwargs)
        with self._generator_of_networks(tokens.device):
            guess = Guess(self.generator(masked.inputs, **kwargs), tokens)
            objective: nn.Module = _electra(
                guess,
                Verdict(self.discriminator, kwargs, batch.tokens, tokens),
                lambda *_: masked,
                partial(_gumbel, temperature=self.temperature) if self.temperature else _argmax,
                self._vocabulary(guess.dim, tokens.device),
                generator_weight=self.gen_weight,
                discriminator_weight=self.disc_weight,
            )
            # In eval mode it also returns the input of accuracies. The networks are not its submodules and keep theirs.
            losses: Losses = objective.eval()(batch, rng)
        return _results(losses, batch)


class MLM(_Trainer):
    """Masked language modelling with any network: the lab's objective `mlm` behind mlm-pytorch's API.

    A call returns the loss in nats, over the masked tokens. For the arguments see Electra.
    """

    def __init__(
        self,
        transformer: nn.Module,
        mask_prob: float = 0.15,
        replace_prob: float = 0.9,
        num_tokens: int | None = None,
        random_token_prob: float = 0.0,
        mask_token_id: int = 2,
        pad_token_id: int | None = 0,
        mask_ignore_token_ids: Iterable[int] = (),
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(
            mask_prob, replace_prob, num_tokens, random_token_prob, mask_token_id, pad_token_id, mask_ignore_token_ids,
            seed,
        )  # fmt: skip
        self.transformer = transformer

    def forward(self, seq: Int[Tensor, "B T"], **kwargs: Any) -> Float[Tensor, ""]:
        tokens = seq.long()
        batch, masked, rng = self._start(tokens, kwargs)
        with self._generator_of_networks(tokens.device):
            guess = Guess(self.transformer(masked.inputs, **kwargs), tokens)
            words = self._vocabulary(guess.dim, tokens.device)
            objective: nn.Module = _mlm(None, guess, lambda *_: masked, None, words)
            losses: Losses = objective(batch, rng)
        return _mean(losses, "discriminator")


def _results(losses: Losses, batch: Batch) -> Results:
    detection, generated = losses.detection, losses.predictions["generator"]
    assert detection is not None, "in eval mode an objective returns the detection"
    mlm, disc = _mean(losses, "generator"), _mean(losses, "discriminator")
    # The accuracy on replaced and on original tokens: [2 BT] -> [2].
    replaced, suspected = detection.replaced, detection.logits.detach() > 0
    kinds = torch.stack([batch.attention_mask & replaced, batch.attention_mask & ~replaced]).flatten(1)
    right = (kinds & (suspected == replaced).flatten()).sum(-1) / kinds.sum(-1).clamp(min=1)
    return Results(
        loss=losses.terms["generator"].weight * mlm + losses.terms["discriminator"].weight * disc,
        mlm_loss=mlm,
        disc_loss=disc,
        gen_acc=(generated.correct & generated.valid).sum() / generated.valid.sum().clamp(min=1),
        disc_acc=right.sum() / kinds.any(-1).sum().clamp(min=1),
        disc_labels=replaced.float(),
        disc_predictions=suspected.to(detection.logits.dtype),
    )


def _mean(losses: Losses, name: str) -> Float[Tensor, ""]:
    """Return the mean of a term; zero, with a zero gradient, if nothing was counted."""
    return losses.terms[name].sum / losses.terms[name].count.clamp(min=1)


def _real(tokens: Int[Tensor, "B T"], pad: int | None, options: Mapping[str, Any]) -> Bool[Tensor, "B T"]:
    """Return which tokens are real: by the mask that the networks receive, only without one by the ids."""
    # A mask of floats may be one to add to scores, where 0 means real.
    real = [m.bool() for m in map(options.get, PADDING_MASKS) if isinstance(m, Tensor) and not m.is_floating_point()]
    real = [mask for mask in real if mask.shape == tokens.shape]
    if real:
        return torch.stack(real).all(0)
    return torch.ones_like(tokens, dtype=torch.bool) if pad is None else tokens != pad


def _contents(tokens: Int[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> Int[Tensor, " B"]:
    """Return a hash of each row's real tokens, which takes the place of the example id in eval mode."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    words = mix_((tokens * 0x1F123BB5 + places * 0x2545F491).to(torch.int32))
    return words.masked_fill(~real, 0).sum(-1).to(torch.int32)


@lru_cache(maxsize=16)
def _ids(ids: tuple[int, ...], device: torch.device) -> Int[Tensor, " S"]:
    """Move ids to the device once, not at every step."""
    return torch.tensor(ids, device=device)


@lru_cache(maxsize=16)
def _vocabulary(size: int, special: tuple[int, ...], mask_id: int, device: torch.device) -> Vocabulary:
    """Return all that is known of the vocabulary of a user's network.

    An id outside it, such as a pad_token_id of -1, is not one of its tokens.
    """
    ids = torch.arange(size, device=device)
    is_special = torch.isin(ids, _ids(special, device))
    return Vocabulary(
        size=size, pad_id=-1, cls_id=-1, sep_id=-1, mask_id=mask_id, special_ids=special, is_special=is_special,
        ordinary_ids=ids[~is_special], word_start=~is_special, counts=torch.zeros_like(ids),
    )  # fmt: skip


@contextmanager
def _own_generator(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators of the CPU and of `device` inside; they are restored at the end."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _from_electra_pytorch(trainer: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Accept a state_dict of electra-pytorch or mlm-pytorch, which has no step."""
    if isinstance(getattr(trainer, "discriminator", None), Detector):
        renamed = {"discriminator.0.net.": "discriminator.net.", "discriminator.1.": "discriminator.head."}
        for key in list(state):
            for old, new in renamed.items():
                if key.startswith(prefix + old):
                    state[prefix + new + key.removeprefix(prefix + old)] = state.pop(key)
    state.setdefault(f"{prefix}_extra_state", torch.tensor(0))

"""What components hand back, checked where it enters the lab, so that a mistake is told by the component's name.

Shapes and types are checked at every call, which costs nothing. What the tensors hold is checked at the first call
and, on the CPU, at every one; elsewhere reading it would make the host wait for the device.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.training.device import Precision, autocast
from electra_lab.training.random import Streams
from electra_lab.training.step import backward, losses_at
from registry import Batch, Entry, Losses, Masked, Term, Vocabulary
from registry.errors import BadResult

if TYPE_CHECKING:
    from jaxtyping import Bool, Float32, Int

    from registry.contracts import Random


def _bad(entry: Entry[Any], reason: str) -> BadResult:
    return BadResult(f"{entry.place}: {entry.kind} '{entry.name}' {reason}")


class _Guard:
    names: tuple[str, ...]  # of the tensors that the component is given

    def __init__(self, entry: Entry[Any], **options: Any) -> None:
        self.entry, self.options = entry, options
        self._called = False

    def refuse(self, reason: str) -> BadResult:
        return _bad(self.entry, reason)

    def like(self, what: str, value: object, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Raises BadResult unless `value` is a tensor of that shape and type."""
        if not isinstance(value, Tensor):
            raise self.refuse(f"returned a {type(value).__name__} as {what}, must be a tensor.")
        if value.shape != shape or value.dtype != dtype:
            got, must = f"{list(value.shape)} of {value.dtype}", f"{list(shape)} of {dtype}"
            raise self.refuse(f"returned {what} {got}, must be {must}.")

    def returned(self, *arguments: Any, **options: Any) -> Any:
        """What the component returns. Raises BadResult if it changes a tensor that it is given."""
        tensors = [each for each in arguments if isinstance(each, Tensor)]
        # Compiled code knows no versions; the rehearsal has seen the component by then.
        before = [] if torch.compiler.is_compiling() else [each._version for each in tensors]
        returned = self.entry.component(*arguments, **(self.options | options))
        for name, each, version in zip(self.names, tensors, before, strict=False):
            if each._version != version:
                raise self.refuse(f"changed {name} in place; it must leave what it is given as it is.")
        return returned

    def reads(self, tensor: Tensor) -> bool:
        """Whether this call's tensors are read. Those of a dry run have shapes alone."""
        if type(tensor) is not Tensor or tensor.is_meta or torch.compiler.is_compiling():
            return False
        first, self._called = not self._called, True
        return first or tensor.device.type == "cpu"


class GuardedSampler(_Guard):
    """A sampler whose draws are checked. Raises BadResult."""

    names = ("logits",)

    def __call__(self, logits: Float32[Tensor, "N V"], rng: Random) -> Int[Tensor, "N"]:
        drawn: Tensor = self.returned(logits, rng)
        number, size = logits.shape
        self.like("tokens", drawn, (number,), torch.int64)
        if self.reads(drawn) and number:
            low, high = int(drawn.min()), int(drawn.max())
            if low < 0 or high >= size:
                raise self.refuse(f"drew the id {low if low < 0 else high}; ids are 0 to {size - 1}.")
            excluded = logits.gather(1, drawn.unsqueeze(1)) == float("-inf")
            if excluded.any() and not logits.isnan().any():  # NaN is told as a diverged run
                token = int(drawn[excluded.squeeze(1)][0])
                raise self.refuse(f"drew the id {token}, whose logit is -inf: special tokens must never be drawn.")
        return drawn


class GuardedMasking(_Guard):
    """A masking strategy whose choices are checked. Raises BadResult."""

    names = ("tokens", "maskable")

    def __init__(self, entry: Entry[Any], largest: float | None = None, **options: Any) -> None:
        """`largest` is the largest mask_prob of a schedule: there are as many slots always."""
        super().__init__(entry, **options)
        self.largest: float = options["mask_prob"] if largest is None else largest

    def __call__(
        self, tokens: Int[Tensor, "B T"], maskable: Bool[Tensor, "B T"], vocabulary: Vocabulary, rng: Random
    ) -> Masked:
        now = self.options["mask_prob"]
        fixed = not isinstance(now, Tensor) and now == self.largest
        now = now.clamp(max=self.largest) if isinstance(now, Tensor) else min(now, self.largest)
        masked = self.returned(tokens, maskable, vocabulary, rng, mask_prob=now)
        if not isinstance(masked, Masked):
            raise self.refuse(f"returned a {type(masked).__name__}, must be a registry.Masked.")
        self.like("inputs", masked.inputs, tuple(tokens.shape), torch.int64)
        slots = masked.positions.shape[-1] if isinstance(masked.positions, Tensor) and masked.positions.dim() else 0
        self.like("positions", masked.positions, (len(tokens), slots), torch.int64)
        self.like("valid", masked.valid, (len(tokens), slots), torch.bool)
        most = math.ceil(self.largest * tokens.shape[1] - 1e-9)
        if slots != most and fixed:
            raise self.refuse(f"returned {slots} slots a row; at mask_prob {now:g} there must be {most}.")
        if self.reads(masked.positions):
            self._read(masked, tokens, maskable, vocabulary)
            if masked.valid[:, most:].any():
                raise self.refuse(f"returned slots that count behind the first {most}, all that there are.")
        if slots == most:
            return masked
        spare = (0, most - slots)  # below zero it cuts
        return Masked(masked.inputs, F.pad(masked.positions, spare), F.pad(masked.valid, spare))

    def _read(self, masked: Masked, tokens: Tensor, maskable: Tensor, vocabulary: Vocabulary) -> None:
        positions, valid, size = masked.positions, masked.valid, vocabulary.size
        if ((positions < 0) | (positions >= tokens.shape[1])).any():
            raise self.refuse(f"returned positions outside 0 to {tokens.shape[1] - 1}, in slots that count or do not.")
        times = torch.zeros_like(tokens).scatter_add_(1, positions, valid.long())
        wrong = {
            "chose a position twice in one row.": times > 1,
            "chose a token that may not be masked (padding or a special token).": (times > 0) & ~maskable,
            "changed inputs at a position that it did not choose.": (times == 0) & (masked.inputs != tokens),
            f"put an id outside 0 to {size - 1} into inputs.": (masked.inputs < 0) | (masked.inputs >= size),
        }
        for reason, where in wrong.items():
            if where.any():
                raise self.refuse(reason)
        strange = vocabulary.is_special[masked.inputs] & (masked.inputs != vocabulary.mask_id)
        if (strange & (masked.inputs != tokens)).any():
            raise self.refuse("put a special token other than [MASK] into inputs.")
        if (maskable.any(-1) & ~valid.any(-1)).any():
            raise self.refuse("chose nothing in a row that has tokens to choose from.")


def refuse_backbone(module: object, entry: Entry[Any]) -> None:
    """Raises BadResult unless a newly built backbone has what the lab reads (registry.contracts.Backbone)."""
    if not isinstance(module, nn.Module):
        raise _bad(entry, "must be a class derived from torch.nn.Module.")
    missing = [name for name in ("layers", "length_multiple", "positions", "at_step") if not hasattr(module, name)]
    if missing:
        raise _bad(entry, f"has no {' and no '.join(missing)}; see registry/contracts.py: Backbone.")
    multiple: Any = module.length_multiple
    if type(multiple) is not int or multiple < 1:
        raise _bad(entry, f"has the length_multiple {multiple!r}, must be an integer above 0.")
    calls: dict[str, tuple[Any, ...]] = {"forward": ("x", "mask"), "at_step": ("seed", "step")}
    if callable(getattr(module, "flops", None)):
        calls["flops"] = ("length",)
    for name, arguments in calls.items():
        try:
            inspect.signature(getattr(module, name)).bind(*arguments)
        except TypeError as error:
            raise _bad(entry, f"cannot be called as {name}({', '.join(arguments)}): {error}.") from None
    if "flops" in calls and not isinstance(told := module.flops(multiple), int):  # type: ignore[operator]
        raise _bad(entry, f"says flops({multiple}) is {told!r}, must be an integer.")
    if not any(True for _ in module.parameters()):
        raise _bad(entry, "has no parameters: there is nothing to train.")
    if module.positions not in ("lab", "own"):
        raise _bad(entry, f"has the positions {module.positions!r}, must be 'lab' or 'own'.")


def rehearse(objective: nn.Module, entry: Entry[Any], batch: Batch, seed: int, precision: Precision) -> None:
    """One forward and backward pass and one evaluation on a few rows, so that a component that fails, fails before
    anything is written. Leaves neither gradients nor changed buffers behind. Raises BadResult, or what the component
    raises.
    """
    # But for modules that know the step themselves: they would not notice that their buffers are others again.
    unaware = [module for module in objective.modules() if not hasattr(module, "at_step")]
    before = [(buffer, buffer.clone()) for module in unaware for buffer in module.buffers(recurse=False)]
    counts: Callable[..., dict[str, Tensor]] = objective.counts  # type: ignore[assignment]  # by contract
    names = set(counts(batch, Streams(seed, 0, batch.examples)))
    losses = losses_at(0, objective, batch, seed, precision)
    refuse_losses(losses, names, entry, batch)
    backward(losses.terms)
    objective.zero_grad(set_to_none=True)
    with torch.no_grad(), autocast(batch.tokens.device, precision):
        refuse_losses(objective.eval()(batch, Streams(seed, 0, batch.examples)), names, entry, batch)
    for buffer, value in before:
        buffer.copy_(value)
    objective.train()


def _refuse_findings(losses: Losses, shape: tuple[int, ...], entry: Entry[Any]) -> None:
    """What metrics read. Raises BadResult."""

    def refuse_unlike(what: str, tensors: Mapping[str, tuple[object, bool]], shape: tuple[int, ...]) -> None:
        for name, (value, whole) in tensors.items():
            right = isinstance(value, Tensor) and value.shape == shape and value.is_floating_point() == (not whole)
            kind = "integer or bool" if whole else "floating point"
            if not right:
                raise _bad(entry, f"returned {what} whose {name} is no {kind} tensor of shape {list(shape)}.")

    for name, asked in losses.predictions.items():
        if name not in ("generator", "discriminator"):
            raise _bad(entry, f"returned a prediction of '{name}', must be of 'generator' or 'discriminator'.")
        shape_of_slots = tuple(asked.positions.shape) if isinstance(asked.positions, Tensor) else ()
        kinds = {"positions": True, "valid": True, "hidden": True, "loss": False, "correct": True}
        if len(shape_of_slots) != 2 or shape_of_slots[0] != shape[0]:
            raise _bad(entry, f"returned a prediction whose positions are not of shape [{shape[0]}, K].")
        refuse_unlike("a prediction", {n: (getattr(asked, n), whole) for n, whole in kinds.items()}, shape_of_slots)
    if (seen := losses.detection) is not None:
        found = {"inputs": (seen.inputs, True), "replaced": (seen.replaced, True), "logits": (seen.logits, False)}
        refuse_unlike("a detection", found, shape)


def refuse_losses(losses: object, names: set[str], entry: Entry[Any], batch: Batch) -> None:
    """Raises BadResult unless an objective returned Losses with the terms that its counts() names."""
    if not isinstance(losses, Losses):
        raise _bad(entry, f"returned a {type(losses).__name__}, must be a registry.Losses.")
    for name, term in losses.terms.items():
        if not isinstance(term, Term) or term.sum.dim() or not term.sum.is_floating_point() or term.count.dim():
            raise _bad(entry, f"returned '{name}', which is no registry.Term of a scalar sum and a scalar count.")
    _refuse_findings(losses, tuple(batch.tokens.shape), entry)
    if not losses.terms or set(losses.terms) != names:
        raise _bad(entry, f"returned the terms {sorted(losses.terms)}, but its counts() has {sorted(names)}.")

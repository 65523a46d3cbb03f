"""Checks of the results of components, before a run: a mistake is reported under the component's name."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from numbers import Real
from typing import Any

import torch
from jaxtyping import Bool, Float32, Int
from torch import Tensor, nn

from electra_lab.model.long_rows import FLASH_BEYOND, runs_of
from electra_lab.training.evaluation import Accumulate
from electra_lab.training.execution import Precision
from electra_lab.training.random import Streams
from electra_lab.training.scheduled import Configured, FixedSlots
from electra_lab.training.step import Learner, backward, parameters_of, update
from registry import Backbone, Batch, Entry, Example, Losses, Masked, Metric, Random, Term, Vocabulary, count, using
from registry.errors import BadResult, ConfigError


def _bad(entry: Entry[Any], reason: str) -> BadResult:
    return BadResult(f"{entry.place}: {entry.kind} '{entry.name}' {reason}")


@contextmanager
def checked(components: Iterable[Configured]) -> Iterator[None]:
    """Check every result of samplers and masking strategies inside the block. Raises BadResult."""
    with ExitStack() as checks:
        for component in components:
            checks.callback(setattr, component, "function", component.function)
            if isinstance(component, FixedSlots):
                component.function = partial(check_masking, component)
            else:
                component.function = partial(check_sampler, component)
        yield


def check_sampler(sampler: Configured, logits: Float32[Tensor, "N V"], rng: Random, /, **options: Any) -> Tensor:
    """Call a sampler, and return its draws. Raises BadResult unless they follow the contract."""
    entry = sampler.entry
    drawn: Tensor = _called(entry, {"logits": logits}, logits, rng, **options)
    number, size = logits.shape
    _like(entry, "tokens", drawn, (number,), torch.int64)
    if number and _has_values(drawn):
        low, high = int(drawn.min()), int(drawn.max())
        if low < 0 or high >= size:
            raise _bad(entry, f"drew the id {low if low < 0 else high}; ids are 0 to {size - 1}.")
        wrong = logits.gather(1, drawn.unsqueeze(1)) == float("-inf")
        if wrong.any() and not logits.isnan().any():  # NaN is reported as a diverged run
            token = int(drawn[wrong.squeeze(1)][0])
            raise _bad(entry, f"drew the id {token}, whose logit is -inf: special tokens must never be drawn.")
    return drawn


def check_masking(
    masking: FixedSlots,
    tokens: Int[Tensor, "B T"],
    maskable: Bool[Tensor, "B T"],
    vocabulary: Vocabulary,
    rng: Random,
    /,
    **options: Any,
) -> Masked:
    """Call a masking strategy, and return its choice. Raises BadResult unless it follows the contract."""
    entry = masking.entry
    masked = _called(entry, {"tokens": tokens, "maskable": maskable}, tokens, maskable, vocabulary, rng, **options)
    # Shapes
    if not isinstance(masked, Masked):
        raise _bad(entry, f"returned a {type(masked).__name__}, must be a registry.Masked.")
    _like(entry, "inputs", masked.inputs, tuple(tokens.shape), torch.int64)
    slots = masked.positions.shape[-1] if isinstance(masked.positions, Tensor) and masked.positions.dim() else 0
    _like(entry, "positions", masked.positions, (len(tokens), slots), torch.int64)
    _like(entry, "valid", masked.valid, (len(tokens), slots), torch.bool)
    most, chosen = count(masking.largest, tokens.shape[1]), options["mask_prob"]
    if slots != most and chosen == masking.largest and not isinstance(chosen, Tensor):
        raise _bad(entry, f"returned {slots} slots a row; at mask_prob {chosen:g} there must be {most}.")
    # Values
    if _has_values(masked.positions):
        _check_choice(entry, masked, tokens, maskable, vocabulary)
        if masked.valid[:, most:].any():
            raise _bad(entry, f"marked slots after the first {most} as valid; the lab keeps only these.")
    return masked


def _check_choice(entry: Entry[Any], masked: Masked, tokens: Tensor, maskable: Tensor, vocabulary: Vocabulary) -> None:
    positions, valid, size = masked.positions, masked.valid, vocabulary.size
    if ((positions < 0) | (positions >= tokens.shape[1])).any():
        reason = f"returned positions outside 0 to {tokens.shape[1] - 1}; slots that are not valid need one, too."
        raise _bad(entry, reason)
    times = torch.zeros_like(tokens).scatter_add_(1, positions, valid.long())
    wrong = {
        "chose a position twice in one row.": times > 1,
        "chose a token that may not be masked (padding or a special token).": (times > 0) & ~maskable,
        "changed inputs at a position that it did not choose.": (times == 0) & (masked.inputs != tokens),
        f"put an id outside 0 to {size - 1} into inputs.": (masked.inputs < 0) | (masked.inputs >= size),
    }
    for reason, where in wrong.items():
        if where.any():
            raise _bad(entry, reason)
    strange = vocabulary.is_special[masked.inputs] & (masked.inputs != vocabulary.mask_id)
    if (strange & (masked.inputs != tokens)).any():
        raise _bad(entry, "put a special token other than [MASK] into inputs.")
    if (maskable.any(-1) & ~valid.any(-1)).any():
        raise _bad(entry, "chose nothing in a row that has tokens to choose from.")


def _called(entry: Entry[Any], tensors: Mapping[str, Tensor], *arguments: Any, **options: Any) -> Any:
    """Call a component. Raises BadResult if it changes one of the tensors, which are among its arguments."""
    before = {name: tensor._version for name, tensor in tensors.items()}
    returned = entry.component(*arguments, **options)
    for name, tensor in tensors.items():
        if tensor._version != before[name]:
            raise _bad(entry, f"changed {name} in place; it must not modify its arguments.")
    return returned


def _like(entry: Entry[Any], what: str, value: object, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise BadResult unless `value` is a tensor of that shape and type."""
    if not isinstance(value, Tensor):
        raise _bad(entry, f"returned a {type(value).__name__} as {what}, must be a tensor.")
    if value.shape != shape or value.dtype != dtype:
        got, must = f"{list(value.shape)} of {value.dtype}", f"{list(shape)} of {dtype}"
        raise _bad(entry, f"returned {what} {got}, must be {must}.")


def _has_values(tensor: Tensor) -> bool:
    """Return False for tensors that have only a shape, as in a dry run."""
    return type(tensor) is Tensor and not tensor.is_meta


def refuse_backbone(module: object, entry: Entry[Any]) -> None:
    """Raise BadResult unless a new backbone has the attributes of its contract."""
    if not (isinstance(module, Backbone) and isinstance(module, nn.Module)):
        raise _bad(entry, "must be a class derived from registry.Backbone and torch.nn.Module.")
    if not hasattr(module, "layers"):
        raise _bad(entry, "has no layers; see registry/contracts/training.py.")
    multiple: Any = module.length_multiple
    if type(multiple) is not int or multiple < 1:
        raise _bad(entry, f"has the length_multiple {multiple!r}, must be an integer above 0.")
    inputs = ("x", "attention_mask", *(["documents"] if module.separates_documents else []))
    named = {"depths": (), "detach": False} if module.inner_states else {}
    calls = {"forward": inputs, "at_step": ("seed", "step"), "flops": ("length",), "shared_flops": ("length",)}
    for name, arguments in calls.items():
        options = named if name == "forward" else {}
        try:
            inspect.signature(getattr(module, name)).bind(*arguments, **options)
        except TypeError as error:
            shown = ", ".join((*arguments, *options))
            raise _bad(entry, f"cannot be called as {name}({shown}): {error}.") from None
    for name, number in (("flops", module.flops(multiple)), ("shared_flops", module.shared_flops(multiple))):
        if not (isinstance(number, int) or (name == "flops" and number is None)):
            raise _bad(entry, f"returned {number!r} from {name}({multiple}), must be an integer.")
    if not any(True for _ in module.parameters()):
        raise _bad(entry, "has no parameters: there is nothing to train.")
    if module.positions not in ("lab", "own"):
        raise _bad(entry, f"has the positions {module.positions!r}, must be 'lab' or 'own'.")
    if module.bare_embeddings:
        if module.positions != "own":
            raise _bad(entry, "takes bare embeddings, so its positions must be 'own'.")
        if not isinstance(getattr(module, "embedding_dropout", None), nn.Dropout):
            raise _bad(entry, "takes bare embeddings, so it must have an nn.Dropout `embedding_dropout`.")


def try_optimizer(entry: Entry[Any], learning_rate: float, options: Mapping[str, Any]) -> Any:
    """Try an optimizer on two small parameters, and return it. Raises BadResult, or the optimizer's own error."""

    def made() -> tuple[Any, list[nn.Parameter]]:
        named = {"weight": nn.Parameter(torch.ones(2, 3)), "bias": nn.Parameter(torch.ones(3))}
        for parameter in named.values():
            parameter.grad = torch.ones_like(parameter)
        return entry.component(list(named.items()), learning_rate, **options), list(named.values())

    def groups(optimizer: Any) -> list[dict[str, Any]]:
        return [group | {"params": None} for group in optimizer.param_groups]

    optimizer, parameters = made()
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _bad(entry, "must be a class derived from torch.optim.Optimizer.")
    grouped = parameters_of(optimizer)
    if sorted(map(id, grouped)) != sorted(map(id, parameters)):
        raise _bad(entry, "must have every parameter that it is given in exactly one group.")
    optimizer.step()
    if groups(optimizer) != groups(made()[0]):
        raise _bad(entry, "changes its param_groups in a step; a checkpoint holds only tensors in `state`.")
    for parameter in parameters:
        state = optimizer.state[parameter]
        if other := next((key for key, value in state.items() if not isinstance(value, Tensor) or "." in key), None):
            raise _bad(entry, f"keeps the state {other!r}, which is not a tensor; a checkpoint could not hold it.")
        held = sum(value.nbytes for value in state.values())
        stated: Any = getattr(optimizer, "state_bytes", None)
        if not callable(stated) or stated(parameter) != held:
            shape = list(parameter.shape)
            raise _bad(entry, f"must have a method state_bytes(parameter), which returns {held} for shape {shape}.")
    other, skipping = made()
    for finite in (False, True):
        update(other, torch.tensor(finite))
    for parameter, skipped in zip(parameters, skipping, strict=True):
        state, after_skip = optimizer.state[parameter], other.state[skipped]
        same = all(torch.equal(value, after_skip[key]) for key, value in state.items())
        if not (same and torch.equal(parameter, skipped)):
            reason = "continues differently after a skipped step; every tensor of its state must begin at zero."
            raise _bad(entry, reason)
    return optimizer


def rehearse(
    learner: Learner, entry: Entry[Any], batch: Batch, seed: int, precision: Precision, accumulate: Accumulate | None
) -> bool:
    """Run a forward and a backward pass and an evaluation on a few rows, with metrics if there is an accumulator.

    A component that fails does so here, before anything is written. No gradients or changed buffers remain. Returns
    whether every trainable parameter received a gradient. Raises BadResult, or the component's own error.
    """
    objective: Any = learner.objective
    with on_trial(objective), using(entry), checked(learner.components), _documents_counted(learner, entry, batch):
        learner.at_step(seed, 0, batch.example_ids.cpu().numpy())  # it sees which random numbers steps ask for
        rng = learner.keys.streams(batch.example_ids)
        counts = objective.counts(batch, rng)
        with _kernels_for(precision):
            losses = learner.losses(batch, rng, precision)
            refuse_losses(losses, counts, entry, batch)
            wrong = [name for name, term in losses.terms.items() if int(counts[name]) != int(term.count)]
            if wrong:
                raise _bad(entry, f"returned a count of '{wrong[0]}' that differs from counts().")
            backward(losses.terms)
        reached = all(p.grad is not None for p in objective.parameters() if p.requires_grad)
        with torch.no_grad(), learner.evaluating(seed):
            losses = learner.losses(batch, Streams.of(seed, 0, batch.example_ids), precision)
            refuse_losses(losses, counts, entry, batch)
            if accumulate is not None:
                _refuse_metrics(accumulate({0}), entry, batch, losses)
    return reached


@contextmanager
def _documents_counted(learner: Learner, entry: Entry[Any], batch: Batch) -> Iterator[None]:
    """Raise BadResult if a network reads more documents than the batch has: in a step, CUDA would end the process."""
    most = 0 if batch.document_counts is None else int(batch.document_counts.sum())

    def refuse(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if len(arguments) > 2 and (documents := int(runs_of(*arguments[1:])[-1])) > most:
            reason = f"gave a network {documents} documents and pieces of padding, and its batch has {most}"
            raise _bad(entry, f"{reason}; see Batch.document_counts. Call the network once for each copy of the rows.")

    with ExitStack() as hooks:
        counts_matter = most and batch.tokens.shape[1] > FLASH_BEYOND
        for backbone in learner.encoders if counts_matter else ():
            hooks.enter_context(backbone.register_forward_pre_hook(refuse))
        yield


@contextmanager
def _kernels_for(precision: Precision) -> Iterator[None]:
    """Turn torch's error for a missing fp16 kernel into a ConfigError; on CPUs some are missing."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if precision != "fp16" or not re.search(r"not implemented for 'Half'", str(error)):
            raise
        raise ConfigError(
            f"train.precision: fp16 is not possible here: torch has no fp16 kernel for a part of these networks "
            f"({str(error).splitlines()[0]}). Use fp32 or bf16, or a CUDA device."
        ) from error


@contextmanager
def on_trial(objective: nn.Module) -> Iterator[None]:
    """Train inside the block, and restore weights, buffers, gradients and the random state at its end.

    An objective may change weights in at_step, for example to start one network from another.
    """
    # Modules with at_step redraw their buffers themselves, and would not notice a restored one.
    unaware = [module for module in objective.modules() if not hasattr(module, "at_step")]
    changing: list[Tensor] = list(objective.parameters())
    for module in unaware:
        changing += module.buffers(recurse=False)
    before = [(tensor, tensor.detach().clone()) for tensor in changing]
    devices = {parameter.device for parameter in objective.parameters() if parameter.device.type == "cuda"}
    objective.train()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        objective.zero_grad(set_to_none=True)
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)


def _refuse_metrics(accumulator: Any, entry: Entry[Any], batch: Batch, losses: Losses) -> None:
    """Raise BadResult if an accumulator has metrics that it does not declare, or that are not numbers."""
    accumulator.update(batch, losses)
    values, gains = dict(accumulator.values()), dict(accumulator.gains()) if hasattr(accumulator, "gains") else {}
    for name, number in {**gains, **values}.items():
        if name in values and not isinstance(accumulator.metrics.get(name), Metric):
            raise _bad(entry, f"has a metric '{name}' that it does not declare.")
        if not isinstance(number, Real):
            raise _bad(entry, f"has a metric '{name}' that is {number!r:.80}, must be a number.")
    if not all(isinstance(example, Example) for example in accumulator.examples()):
        raise _bad(entry, "shows examples that are not of the type registry.Example.")


def refuse_losses(losses: object, counts: Mapping[str, object], entry: Entry[Any], batch: Batch) -> None:
    """Raise BadResult unless an objective returned Losses with the terms that its counts() has, fit for metrics."""
    if not isinstance(losses, Losses):
        raise _bad(entry, f"returned a {type(losses).__name__}, must be a registry.Losses.")
    for name, term in [*losses.terms.items(), *losses.metrics.items()]:
        if not isinstance(name, str):
            raise _bad(entry, f"returned a term called {name!r:.80}; a name must be a string.")
        kinds = (True,) if name in losses.terms else (True, False)  # the sum of a metric may be an integer
        scalar = isinstance(term, Term) and any(_is_scalar(term.sum, floating) for floating in kinds)
        if not (scalar and _is_scalar(term.count, False)):
            raise _bad(entry, f"returned '{name}', which is not a registry.Term of a scalar sum and a scalar count.")
        if not (isinstance(term.weight, Real) or _is_scalar(term.weight, True)):
            raise _bad(entry, f"returned '{name}' with the weight {term.weight!r:.80}, must be a number.")
    shape = tuple(batch.tokens.shape)
    tensors: list[tuple[str, str, object, tuple[int, ...]]] = []  # of which result, name, value, shape
    for name, asked in losses.predictions.items():
        if name not in ("generator", "discriminator"):
            raise _bad(entry, f"returned a prediction of '{name}', must be of 'generator' or 'discriminator'.")
        slots = tuple(asked.positions.shape) if isinstance(asked.positions, Tensor) else ()
        if len(slots) != 2 or slots[0] != shape[0]:
            raise _bad(entry, f"returned a prediction whose positions are not of shape [{shape[0]}, K].")
        tensors += [("a prediction", field, value, slots) for field, value in vars(asked).items()]
    if losses.detection is not None:
        tensors += [("a detection", field, value, shape) for field, value in vars(losses.detection).items()]
    if losses.choice is not None:
        slots, k = (shape[0], _size(losses.choice.positions, 1)), _size(losses.choice.candidates, 2)
        options = _size(losses.choice.logits, 2)
        widths = {"candidates": (k,), "logits": (options if options == k + 1 else k,)}
        for field, value in vars(losses.choice).items():
            tensors.append(("a choice", field, value, (*slots, *widths.get(field, ()))))
    for what, field, value, size in tensors:
        floating = field in ("loss", "logits")
        if not (isinstance(value, Tensor) and value.shape == size and value.is_floating_point() == floating):
            kind = "floating point" if floating else "integer or bool"
            raise _bad(entry, f"returned {what} with a {field} that is not a {kind} tensor of shape {list(size)}.")
    if not losses.terms or losses.terms.keys() != counts.keys():
        raise _bad(entry, f"returned the terms {sorted(losses.terms)}, but its counts() has {sorted(counts)}.")
    if wrong := [name for name, count in counts.items() if not _is_scalar(count, False)]:
        raise _bad(entry, f"returned a count of '{wrong[0]}' from counts() that is not a scalar of integers.")


def _size(value: object, axis: int) -> int:
    """Return the size of an axis, -1 if there is none."""
    return value.shape[axis] if isinstance(value, Tensor) and value.dim() > axis else -1


def _is_scalar(value: object, floating: bool) -> bool:
    """Return whether this is one number in a tensor, floating-point or an integer."""
    if not isinstance(value, Tensor) or value.dim() or value.dtype == torch.bool:
        return False
    return value.is_floating_point() == floating

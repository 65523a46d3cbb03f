"""A pre-trained pair in use."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from electra_lab.assembly.networks import OpenedModel
from electra_lab.data.texts import More, Tokenized, Window, batches, chunks, tokenize, windows
from electra_lab.data.vocabulary import spaces_stay
from electra_lab.inference.results import Candidate, Corrupted, Detected, Filled, Results, Scored, one_or_all, several
from electra_lab.inference.scoring import COMBINED, By, Reduce, energies_of, log_odds, refuse_unknown, surprisals
from electra_lab.model.network import Network
from electra_lab.training.random import Streams
from registry import Generator, count
from registry.errors import CheckpointError, ConfigError

Pooling = Literal["mean", "cls"]
Verb = Literal["detect", "corrupt", "fill", "predict", "embed", "score"]


class Pair(OpenedModel):
    """A discriminator, a generator, or both, with their tokenizer. `electra_lab.load` makes one.

    A method that takes texts returns one result for a text, and a list for several. Texts that are longer than the
    networks read at once are read in windows that overlap. A number that is not finite raises CheckpointError. Text of
    which more than a tenth is unknown to the tokenizer gives an UnknownText warning; results have its share.

    length  number of tokens that the networks read at once, [CLS] and [SEP] included
    """

    def __init__(self, opened: OpenedModel) -> None:
        super().__init__(**vars(opened))
        if self.length < 3:
            reason = f"reads {self.length} tokens at once; it needs at least 3, for [CLS], [SEP] and a token"
            raise ConfigError(f"{self.name}: {reason}.")

    def __repr__(self) -> str:
        parts = [name for name in ("generator", "discriminator") if getattr(self, name) is not None]
        return f"Pair({self.name!r}: {' and '.join(parts)}, {self.vocabulary.size:,} tokens)"

    @overload
    def detect(self, texts: str, *, batch_size: int = ...) -> Detected: ...
    @overload
    def detect(self, texts: list[str], *, batch_size: int = ...) -> Results[Detected]: ...
    def detect(self, texts: str | list[str], *, batch_size: int = 32) -> Detected | Results[Detected]:
        """Return, for every token, the probability that it was replaced. Raises ConfigError without a detector."""
        self._refuse(batch_size)
        tokenized = tokenize(self.tokenizer, several(texts))
        verdicts = zip(tokenized, self._verdicts(tokenized, batch_size), strict=True)
        return one_or_all(texts, [Detected(t.text, t.tokens, t.offsets, p, unknown=t.unknown) for t, p in verdicts])

    def stream(
        self, verb: Verb, texts: Iterable[Any], *, batch_size: int = 32, more: More | None = None, **options: Any
    ) -> Iterator[Any]:
        """Yield the results of a verb in order; the memory that it takes does not grow with the number of texts.

        more  function for texts that come one by one, as from a log: waits for another until a time of
              time.monotonic(), and returns True if it has come. Texts are then answered when a batch is full, or 200 ms
              after its first one. Without it, the results of up to 64 batches are computed at once

        If reading the texts raises DataError, or a signal ends it, the results of those before come first.
        """
        self._refuse(batch_size, options.get("top", 1))
        number = options.pop("first", 0)
        for chunk in chunks(texts, batch_size, more):
            numbered = {"first": number} if verb == "corrupt" else {}
            yield from getattr(self, verb)(chunk, batch_size=batch_size, **numbered, **options)
            number += len(chunk)

    # fmt: off
    @overload
    def corrupt(self, texts: str, *, mask_prob: float = ..., temperature: float = ..., top: int = ..., seed: int = ...,
                first: int = ..., batch_size: int = ...) -> Corrupted: ...
    @overload
    def corrupt(self, texts: list[str], *, mask_prob: float = ..., temperature: float = ..., top: int = ...,
                seed: int = ..., first: int = ..., batch_size: int = ...) -> Results[Corrupted]: ...
    # fmt: on
    def corrupt(
        self,
        texts: str | list[str],
        *,
        mask_prob: float = 0.15,
        temperature: float = 1.0,
        top: int = 5,
        seed: int = 0,
        first: int = 0,
        batch_size: int = 32,
    ) -> Corrupted | Results[Corrupted]:
        """Mask tokens, let the generator replace them, and let the discriminator judge the result.

        In each text ceil(mask_prob * tokens) tokens are masked. Masks and draws depend on the seed and on the number
        of the text alone. Without a detector there is no verdict. Raises ConfigError without a generator.

        temperature  temperature of the softmax that replacements are drawn from
        top          number of candidates to return for each masked token
        first        number of the first text, for a part of a longer list
        """
        if not 0 < mask_prob <= 1 or not 0 < temperature < math.inf:
            raise ConfigError("mask_prob must be above 0 and at most 1, temperature a finite number above 0.")
        self._refuse(batch_size, top)
        network, mask = self.writer, self.vocabulary.mask_id
        originals = tokenize(self.tokenizer, several(texts))

        # Mask tokens. A text's random numbers do not depend on the other texts of its batch.
        luck: list[dict[int, float]] = []  # of each text, by masked token, the number that it is drawn by
        for start in range(0, len(originals), batch_size):
            batch = originals[start : start + batch_size]
            streams = Streams.of(seed, 0, first + start + torch.arange(len(batch)))
            longest = max(len(text.ids) for text in batch)
            ranks, numbers = (streams(purpose).uniform(len(batch), longest) for purpose in ("masking", "sampling"))
            for row, text in enumerate(batch):
                chosen = self._chosen(text, mask_prob, ranks[row])
                luck.append(dict(zip(chosen, numbers[row].tolist(), strict=False)))
        asked = originals
        if not self.has_energies:  # `electric` trains a generator that reads the text without masks
            asked = [text.replaced(dict.fromkeys(chosen, mask)) for text, chosen in zip(originals, luck, strict=True)]

        # Draw replacements.
        drawn: list[dict[int, int]] = [dict.fromkeys(chosen, mask) for chosen in luck]
        candidates: list[dict[int, list[Candidate]]] = [{} for _ in originals]
        for n, places, logits in self._guesses(network, asked, [list(chosen) for chosen in luck], batch_size):
            highest = logits.max(-1, keepdim=True).values
            probabilities = ((logits - highest).double() / temperature).softmax(-1)
            # The inverse of the cumulative distribution, up to the largest number below its last value.
            sums = probabilities.cumsum(-1)
            below = torch.tensor([luck[n][place] for place in places]).double() * sums[:, -1]
            ids = torch.searchsorted(sums, below.unsqueeze(-1), right=True).squeeze(-1).tolist()
            drawn[n].update(zip(places, ids, strict=True))
            candidates[n].update(zip(places, self._best(probabilities, top), strict=True))

        # Let the discriminator judge them.
        corrupted = [text.replaced(new) for text, new in zip(originals, drawn, strict=True)]
        verdicts: list[Any] = [None] * len(originals)
        if self.detects:
            verdicts = self._verdicts(corrupted, batch_size)
        results = []
        for n, text in enumerate(originals):
            inputs = [self._token(id) for id in corrupted[n].ids]
            masked = [place in drawn[n] for place in range(len(inputs))]
            written = {place: self._written(id) for place, id in drawn[n].items() if id != text.ids[place]}
            before = text.text, text.tokens, text.offsets
            best = dict(sorted(candidates[n].items()))
            results.append(Corrupted(*before, inputs, masked, written, best, verdicts[n], unknown=text.unknown))
        return one_or_all(texts, results)

    # fmt: off
    @overload
    def score(self, texts: str, *, by: By | None = ..., reduce: Reduce = ..., mask_prob: float | None = ...,
              batch_size: int = ...) -> Scored: ...
    @overload
    def score(self, texts: list[str], *, by: By | None = ..., reduce: Reduce = ..., mask_prob: float | None = ...,
              batch_size: int = ...) -> Results[Scored]: ...
    # fmt: on
    def score(
        self,
        texts: str | list[str],
        *,
        by: By | None = None,
        reduce: Reduce = "mean",
        mask_prob: float | None = 0.15,
        batch_size: int = 32,
    ) -> Scored | Results[Scored]:
        """Return how unusual each text is, as one number; the score of a text without tokens is None.

        by         "detection": the discriminator's log-odds that a token was replaced. "energy": its estimate of the
                   negative log-probability of a token given the others, in nats, of a pair that `electric` has trained.
                   "likelihood": the generator's negative log-probability of a token that is masked, in nats; towers and
                   word frequencies do not see the token, so they read the text without masks. None: the first for which
                   the pair has a head
        reduce     combination of the numbers of all tokens: "mean", "max" or "sum"
        mask_prob  share of the tokens that likelihood masks at once; None masks each token alone, which is exact and
                   takes a pass for every token

        Raises ConfigError for a pair without the head that it needs.
        """
        refuse_unknown(by, reduce, mask_prob)
        self._refuse(batch_size)
        tokenized = tokenize(self.tokenizer, several(texts))
        if by is None and self.detects:
            by = "detection"
        if by is None and self.has_energies:
            by = "energy"
        if by == "detection":
            numbers = log_odds(self, tokenized, batch_size)
        elif by == "energy":
            numbers = energies_of(self, tokenized, batch_size)
        else:
            numbers = surprisals(self, tokenized, mask_prob, batch_size)
        results = []
        for text, of_text in zip(tokenized, numbers, strict=True):
            values, score = (text.tokens, text.offsets, of_text), COMBINED[reduce](of_text) if of_text else None
            results.append(Scored(text.text, score, *values, by == "detection", unknown=text.unknown))
        return one_or_all(texts, results)

    @overload
    def fill(self, texts: str, *, top: int = ..., batch_size: int = ...) -> Filled: ...
    @overload
    def fill(self, texts: list[str], *, top: int = ..., batch_size: int = ...) -> Results[Filled]: ...
    def fill(self, texts: str | list[str], *, top: int = 5, batch_size: int = 32) -> Filled | Results[Filled]:
        """Return the best tokens for every [MASK] in the texts, each on its own.

        Raises ConfigError if a single text has no mask; of several, one without a mask has no candidates.
        """
        self._refuse(batch_size, top)
        network, mask = self.writer, self.vocabulary.mask_id
        tokenized = tokenize(self.tokenizer, several(texts), with_masks=True)
        masks = [(torch.tensor(text.ids) == mask).nonzero().flatten().tolist() for text in tokenized]
        if isinstance(texts, str) and not masks[0]:
            raise ConfigError(f"there is no {self._token(mask)} to fill in {texts!r:.60}.")
        best: list[dict[int, list[Candidate]]] = [{} for _ in tokenized]
        for n, places, logits in self._guesses(network, tokenized, masks, batch_size):
            best[n].update(zip(places, self._best(logits.double().softmax(-1), top), strict=True))
        results, stay = [], spaces_stay(self.tokenizer)
        for text, places, of_text in zip(tokenized, masks, best, strict=True):
            offsets = [text.offsets[place] for place in places]
            guesses = [of_text[place] for place in places]
            results.append(Filled(text.text, offsets, guesses, stay, unknown=text.unknown))
        return one_or_all(texts, results)

    def embed(
        self, texts: str | list[str], *, pooling: Pooling | None = "mean", batch_size: int = 32
    ) -> Tensor | list[Tensor]:
        """Return the discriminator's states; a generator's if there is nothing else.

        pooling  "mean" of all tokens, of which the first is [CLS] and the last [SEP], as in sentence-transformers; or
                 "cls", the state of [CLS]: Float[texts D], or Float[D] for one text; zeros if it has no tokens. None
                 returns the states of every token, Float[tokens D] for each text, without special tokens
        """
        if pooling not in ("mean", "cls", None):
            raise ConfigError(f"pooling must be 'mean', 'cls' or None, is {pooling!r}.")
        network = self.embeds
        tokenized = tokenize(self.tokenizer, several(texts))
        states = [torch.zeros(len(text.ids) + 2, network.dim) for text in tokenized]  # with [CLS] and [SEP]
        for chosen, hidden in self._hidden(network, tokenized, batch_size):
            for window, row in zip(chosen, hidden.float().cpu(), strict=True):
                of_text, keep = states[window.text], window.keep
                of_text[keep.start + 1 : keep.stop + 1] = row[window.inside]
                if window.first == 0:
                    of_text[0] = row[0]
                if keep.stop + 2 == len(of_text):
                    of_text[-1] = row[window.length + 1]
        if pooling is None:
            of_tokens = [self.finite(of_text[1:-1]) for of_text in states]
            return of_tokens[0] if isinstance(texts, str) else of_tokens
        pooled = [of_text.mean(0) if pooling == "mean" else of_text[0] for of_text in states]
        vectors = self.finite(torch.stack(pooled)) if pooled else torch.zeros(0, network.dim)
        return vectors[0] if isinstance(texts, str) else vectors

    def predict(self, texts: Any, *, batch_size: int = 32) -> Any:
        """Raise ConfigError: only a fine-tuned model predicts."""
        raise ConfigError(f"{self.name}: has no head of a task that the lab reads. Try electra-lab finetune FILE.")

    def unknown(self, texts: Sequence[str]) -> list[float]:
        """Return the share of each text's characters, white space left out, that the tokenizer does not know."""
        return [text.unknown for text in tokenize(self.tokenizer, texts)]

    @property
    def embeds(self) -> Generator:
        """The network whose states `embed` returns."""
        return self.discriminator if self.discriminator is not None else self.writer

    @property
    def detects(self) -> bool:
        """True if there is a detection head."""
        return self.discriminator is not None and "replaced" in self.discriminator.heads

    @staticmethod
    def _refuse(batch_size: int, top: int = 1) -> None:
        for name, value in (("batch_size", batch_size), ("top", top)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a number of at least 1, is {value!r:.60}.")

    @property
    def detector(self) -> Network:
        """The discriminator. Raises ConfigError if it has no detection head."""
        if self.discriminator is None or not self.detects:
            raise ConfigError(f"{self.name}: has no detection head, so it cannot detect replaced tokens.")
        return self.discriminator

    @property
    def has_energies(self) -> bool:
        """True if there is a head for energies."""
        return self.discriminator is not None and "energy" in self.discriminator.heads

    @property
    def writes(self) -> bool:
        """True if there is a network that predicts tokens."""
        return self.generator is not None or (self.discriminator is not None and "tokens" in self.discriminator.heads)

    @property
    def writer(self) -> Generator:
        """The network that predicts tokens, the generator if there is one. Raises ConfigError if there is none."""
        if self.generator is not None:
            return self.generator
        if self.discriminator is not None and "tokens" in self.discriminator.heads:
            return self.discriminator
        raise ConfigError(f"{self.name}: has no generator and no head that predicts tokens.")

    def finite(self, numbers: Tensor) -> Tensor:
        """Return numbers that a network computed. Raises CheckpointError unless all of them are finite."""
        if not numbers.isfinite().all():
            reason = "a number that it computes is not finite: its weights are damaged, or its training diverged"
            raise CheckpointError(f"{self.name}: {reason}. Use another checkpoint or seed.")
        return numbers

    def _chosen(self, text: Tokenized, mask_prob: float, draws: Float[Tensor, " N"]) -> list[int]:
        """Return the tokens to be masked, those of the lowest ranks, in order."""
        ranks = draws[: len(text.ids)].tolist()
        allowed = [i for i, id in enumerate(text.ids) if id not in self.vocabulary.special_ids]
        return sorted(sorted(allowed, key=ranks.__getitem__)[: count(mask_prob, len(allowed))])

    def _best(self, probabilities: Float[Tensor, "N V"], top: int) -> list[list[Candidate]]:
        highest = probabilities.topk(min(top, self.vocabulary.size))
        best = []
        for ids, values in zip(highest.indices.tolist(), highest.values.tolist(), strict=True):
            pairs = zip(ids, values, strict=True)
            best.append([Candidate(self._token(id), p, self._written(id)) for id, p in pairs])
        return best

    def _token(self, id: int) -> str:
        return self.tokenizer.id_to_token(id) or ""

    def _written(self, id: int) -> str:
        """Return a token as it is written after another word, with a space before it if it begins a word."""
        mask = self.vocabulary.mask_id
        return self.tokenizer.decode([mask, id], skip_special_tokens=False).removeprefix(self._token(mask))

    @torch.no_grad()
    def _hidden(
        self, network: Generator, texts: Sequence[Tokenized], batch_size: int
    ) -> Iterator[tuple[list[Window], Float[Tensor, "B T D"]]]:
        self._refuse(batch_size)
        for chosen, batch in batches(texts, windows(texts, self.length), batch_size, self.vocabulary, self.device):
            yield chosen, network.hidden(batch.tokens, batch.attention_mask, batch.segments)

    def _verdicts(self, texts: Sequence[Tokenized], batch_size: int) -> list[list[float]]:
        """Return the probability of having been replaced for every token of every text."""
        return [torch.tensor(odds).sigmoid().tolist() for odds in log_odds(self, texts, batch_size)]

    @torch.no_grad()
    def _guesses(
        self, network: Generator, texts: Sequence[Tokenized], places: Sequence[list[int]], batch_size: int
    ) -> Iterator[tuple[int, list[int], Float[Tensor, "N V"]]]:
        """Yield (text, some of its `places`, their logits on the CPU). Special tokens have -inf."""
        special = self.vocabulary.is_special
        for chosen, hidden in self._hidden(network, texts, batch_size):
            for row, window in enumerate(chosen):
                of_text = places[window.text]
                inside = of_text[bisect_left(of_text, window.keep.start) : bisect_left(of_text, window.keep.stop)]
                if inside:
                    positions = torch.tensor([[place - window.first + 1 for place in inside]], device=self.device)
                    logits = network.token_logits(hidden[row : row + 1], positions)[0]  # [N V]
                    logits = logits[:, : self.vocabulary.size].float()  # some tables are padded
                    self.finite(logits[:, ~special])
                    yield window.text, inside, logits.masked_fill(special, float("-inf")).cpu()

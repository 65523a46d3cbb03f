"""From a validated config to an experiment that can be trained."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from electra_lab.assembly.budget import count_parameters
from electra_lab.assembly.build import Built, build, make_optimizer, sketch, untrained_tokenizer
from electra_lab.assembly.earlier import load_earlier, refuse_other_runs
from electra_lab.assembly.start import refuse_start, start
from electra_lab.config.load import Loaded
from electra_lab.config.schedule import rate_of
from electra_lab.data.rows import Rows
from electra_lab.data.store import Store, open_store
from electra_lab.data.vocabulary import count_tokens, make_vocabulary
from electra_lab.metrics import PretrainingMetrics
from electra_lab.model.network import Network
from electra_lab.storage.provenance import Start
from electra_lab.training.device import choose_precision
from electra_lab.training.evaluation import Accumulate
from electra_lab.training.guards import rehearse
from electra_lab.training.loop import Run, Settings
from electra_lab.training.random import digest
from registry import Corpus, Vocabulary, corpora, objectives, tokenizers
from registry.errors import DataError


@dataclass(frozen=True)
class Experiment:
    """Everything that a run needs, built."""

    run: Run
    settings: Settings
    train: Rows
    held_out: Rows
    vocabulary: Vocabulary
    store: Store
    device: torch.device
    parameters: dict[str, int]  # by network, `shared` and `total`
    model: Network
    accumulate: Accumulate  # makes the accumulator of the objective's metrics
    earlier: dict[str, str]  # by network, the checkpoint of another run that its weights come from
    init: dict[str, Start]  # by network, the weights that `init` named


def check(loaded: Loaded) -> DataError | None:
    """Find every problem that does not require reading the corpus. Raises ConfigError.

    Data that is not here is not an error of the file: the error that a run would raise for it is returned.
    """
    return absent_data(loaded, sketch(loaded))


def absent_data(loaded: Loaded, built: Built) -> DataError | None:
    """Return the error that a run would raise for data that is not here, None if there is none. Raises ConfigError."""
    absent = None
    for look in (
        lambda: open_corpus(loaded),
        lambda: refuse_other_runs(loaded, built.learner.objective),
        lambda: refuse_start(loaded, built),
    ):
        try:
            look()
        except DataError as error:
            absent = absent or error
    return absent


def open_data(loaded: Loaded, announce: Callable[[str], None]) -> Store:
    """Open the tokenized corpus of an experiment, and build its store if needed. Raises DataError, ConfigError."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    config = loaded.config
    corpus = open_corpus(loaded)
    # Only the plug-ins that produce data: a changed sampler is no reason to tokenize again.
    sources = {corpora.get(config.corpus.type).file, tokenizers.get(config.tokenizer.type).file}
    plugins = sorted(plugin.sha256 for plugin in loaded.plugins if plugin.file in sources)
    others = {"corpus_type": config.corpus.type, "tokenizer": config.tokenizer.dump(), "plugins": plugins}
    if tokenizer := untrained_tokenizer(loaded):  # its files may change, or lie elsewhere
        others["tokenizer"] = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    trainer = partial(tokenizers.get(config.tokenizer.type).component, **config.tokenizer.keywords())
    return open_store(config.data.store, corpus, trainer, config.data.held_out, others, announce)


def open_corpus(loaded: Loaded) -> Corpus:
    """Raises DataError if the text is not there, ConfigError if the component refuses its options."""
    component = loaded.config.corpus
    try:
        return corpora.get(component.type).component(**component.keywords())
    except DataError as error:
        raise loaded.problem(("corpus",), f"{component.type}: {error}", DataError) from None
    except ValueError as error:
        raise loaded.problem(("corpus",), f"{component.type} refuses this: {error}") from error


def assemble(loaded: Loaded, store: Store, device: torch.device, *, restored: bool = False) -> Experiment:
    """Assemble an experiment. Raises ConfigError at the line that caused it.

    restored  a checkpoint of the run itself will be loaded, so that weights from elsewhere are not needed
    """
    config, train = loaded.config, loaded.config.train
    counts = count_tokens(store.train, store.tokenizer.get_vocab_size())
    vocabulary = make_vocabulary(store.tokenizer, counts, device)
    # Weights are drawn on the CPU, so that a seed means the same ones on every device.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(digest("weights", config.seed) % 2**63)
        built = build(loaded, vocabulary, weights=True)
    earlier = {} if restored else load_earlier(loaded, built, store)
    init = {} if restored else start(loaded, built, store.tokenizer)
    objective = built.learner.objective.to(device)
    settings = Settings(
        seed=config.seed,
        steps=built.steps,
        batch_size=train.batch_size,
        micro_batch_size=train.micro_batch_size or train.batch_size,
        learning_rate=train.learning_rate,
        rate=rate_of(config.schedules["learning_rate"]),
        clip_norm=train.clip_norm,
        precision=choose_precision(train.precision, device),
        log_every=train.log_every,
        evaluate_every=config.evaluate.every,
        evaluate_batch_size=config.evaluate.batch_size,
        on_non_finite=train.on_non_finite,
        flops=built.flops,
        examples=config.evaluate.examples,
    )
    accumulate = getattr(objective, "accumulator", partial(PretrainingMetrics, vocabulary))
    rows, held_out = (Rows(each, config.data.sequence_length, vocabulary) for each in (store.train, store.held_out))
    batch = rows.training_batch(settings.seed, 0, 2, device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        entry = objectives.get(config.objective.type)
        rehearse(built.learner, entry, batch, settings.seed, settings.precision, accumulate)
    run, parameters = Run(built.learner, make_optimizer(loaded, objective)), count_parameters(built.networks)
    return Experiment(
        run, settings, rows, held_out, vocabulary, store, device, parameters, built.model, accumulate, earlier, init
    )

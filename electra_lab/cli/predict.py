"""electra-lab predict MODEL"""

from contextlib import nullcontext
from typing import Annotated, Literal

import typer

from electra_lab.cli import _texts as options
from electra_lab.cli._inputs import inputs_of
from electra_lab.cli._items import AsFormat, Reading, Table, cells_of, json_line, read, refuse_overwriting
from electra_lab.cli._streams import answer
from electra_lab.cli.run import OnDevice
from registry.errors import ConfigError, command

MODEL = """The folder of a fine-tuning, one of its seeds, or an ELECTRA, BERT, ModernBERT or DeBERTa in Hugging Face
format with the head of a task (a folder or a name on the hub)."""
PAIR = "Second text of each pair, or context of each question."
FIELD = """Field or column with the text, the question or the words. Repeat the option for the second text or the
context. Default: as in the training data, otherwise text and pair, question and context, or words."""


def predict(
    model: Annotated[str, typer.Argument(help=MODEL)],
    texts: options.Texts = None,
    file: options.Records = None,
    pair: Annotated[str | None, typer.Option("--pair", "--context", metavar="TEXT", help=PAIR)] = None,
    format: AsFormat = None,
    field: Annotated[list[str] | None, typer.Option(metavar="NAME", help=FIELD)] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed to use. Default: the best on validation.")] = None,
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Average all seeds of a fine-tuning.")] = False,
    json_: options.Json = False,
    csv_: options.Csv = False,
    on_error: options.Wrong = "stop",
    batch_size: options.Batch = 32,
    device: OnDevice = "auto",
) -> None:
    """Predict labels, numbers, tags or answers for new texts with a fine-tuned model."""
    from electra_lab.inference.finetuned import FineTuned
    from electra_lab.inference.opening import load
    from electra_lab.presentation.console import Console

    if json_ and csv_:
        raise ConfigError("give either --json or --csv.")
    if ensemble and seed is not None:
        raise ConfigError("give either --seed or --ensemble.")
    inputs_of(texts, file)  # refuses what is not there before the model is opened
    chosen: int | Literal["best", "all"] = "best" if seed is None else seed
    if ensemble:
        chosen = "all"
    tuned = load(model, device=device, seed=chosen)
    if not isinstance(tuned, FineTuned):
        cure = command("finetune", "FILE", "--model", model)
        raise ConfigError(f"{model}: has no head of a task that the lab reads. Fine-tune it: {cure}")
    job = tuned.job
    reading = Reading(on_error, format, field or (), job.names, job.needs, job.fields or (), pair, trained=job.dataset)
    incoming = read(texts, file, reading)
    table, terminal, console = Table(), options.colours(), Console()
    results = options.answered(tuned, "predict", incoming, lambda item: item, batch_size=batch_size)
    with nullcontext() if terminal.is_terminal else console.progress(0, None, "predict", "texts"):
        for number, ((place, record, item), result) in enumerate(results, start=1):
            console.advance(number)
            if not (csv_ or json_):
                options.answer_in_colour(terminal, result)
                continue
            added = cells_of(result.answer) if csv_ else result.answer | {"unknown": result.unknown}
            # The words of a text take its place, if the text was in the column `words`.
            replaced = {"words"} if "text" in item and record.get("words") == item["text"] else set()
            refuse_overwriting(place, record, added.keys() - replaced)
            answer(table.line(record | added, place) if csv_ else json_line(record | added))
    if csv_ and not table.columns:
        some = {name.replace("words", "text"): "a" for name in job.needs}  # a table and a line have words as a text
        added = cells_of(tuned.predict([some])[0].answer)
        inputs = [*(incoming.columns or field or (incoming.format != "text" and job.fields) or some)]
        if pair is not None:
            inputs = list(dict.fromkeys([*(incoming.columns or inputs[:1]), job.names[1]]))
        answer(table.row(dict.fromkeys([*inputs, *added])))
    incoming.end()

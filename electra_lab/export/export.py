"""`electra-lab export`: a run's networks as folders that transformers loads. Writing them needs only safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from electra_lab.assembly.budget import size_of
from electra_lab.assembly.networks import build_network
from electra_lab.data.vocabulary import special_ids
from electra_lab.export.card import CARD, Judge, before_loading, model_card
from electra_lab.model.weights import head_of
from electra_lab.pretrained.families import WRITTEN
from electra_lab.pretrained.hugging_face import CONFIG, MARK, Mark, read_mark
from electra_lab.pretrained.opening import read_run
from electra_lab.pretrained.trained_model import Part, TrainedModel
from electra_lab.pretrained.writing import describe, electra_options, stored_tensors, write_network, write_tokenizer
from electra_lab.storage.files import MANIFEST, damage, lock, new_folder, read_json, refuse_unusable, seal
from electra_lab.storage.finetuning_folder import is_seed
from electra_lab.storage.records import Step
from electra_lab.version import __version__
from registry.errors import ConfigError, DataError, InUse

if TYPE_CHECKING:
    from electra_lab.export.int8 import Change, Rows
    from electra_lab.export.onnx import NamedOutputs, Size

ONNX, INT8 = "model.onnx", "model_int8.onnx"


@dataclass(frozen=True)
class Exportable:
    """A network of a run with all that its folder says."""

    part: Part
    config: dict[str, Any]  # config.json
    parameters: int
    longest: int  # input, in tokens
    notes: list[str]  # on loading it
    limits: list[str]  # parts of the run that the folder lacks
    int8: list[Change] = field(default_factory=list)  # what model_int8.onnx changes, if it was asked for

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def head(self) -> str:
        """The head that decides the class."""
        return self.part.class_head

    @property
    def class_name(self) -> str:
        name: str = self.config["architectures"][0]
        return name

    @property
    def auto_class(self) -> str:
        return "AutoModel" + self.part.class_ending.removeprefix("Model")

    def before_loading(self, folder: str) -> list[str]:
        """Return the lines of Python that must run before transformers can load `folder`."""
        if self.part.family:
            return []
        return before_loading(folder, self.part.plugin if self.part.plugin_source else None)


@dataclass(frozen=True)
class Exported:
    path: Path
    step: int
    networks: list[Exportable]


def export(
    run: Path,
    destination: Path,
    step: Step = None,
    *,
    onnx: bool = False,
    size: Size | None = None,
    int8: bool = False,
    judge: Judge | None = None,
    license: str | None = None,
) -> Exported:
    """Write the networks of a run to destination/discriminator and destination/generator, all or nothing.

    If the discriminator's class is also one for tasks, destination/encoder holds the discriminator without its head.

    step   step of the checkpoint, or "best"; the newest by default
    onnx   True to write the model.onnx of each network, too
    size   only batch and length that it takes; by default any
    int8   True to write model_int8.onnx, too, and to measure the difference
    judge  function that words the run's records for the model card; without it the card has no results
    license  licence in the model cards, by the hub's name

    Raises ConfigError if something else is at the destination, or a network cannot become ONNX; CheckpointError;
    DataError if it cannot be written.
    """
    refuse_unusable(destination)
    destination = destination.resolve()
    refuse_to_replace(destination, onnx=onnx or bool(size) or int8, int8=int8)
    model = read_run(run, step)
    assert model.run is not None
    assert model.tokenizer is not None
    assert model.length is not None
    networks = [exportable(model, part) for part in (*model.parts.values(), *encoders(model)) if part.learned]
    rows: list[Rows] | None = None
    if int8:
        from electra_lab.export.int8 import run_rows

        rows = run_rows(model, size)
    with whole(destination) as building:
        for network in networks:
            with new_folder(building / network.name) as folder:
                write_network(folder, network.config, stored_tensors(network.part, network.part.family), network.part)
                pooled = network.part.backbone["dim"], min(model.length, network.longest)
                write_tokenizer(folder, model.tokenizer, network.longest, pooled)
                if onnx or size or int8:
                    _write_onnx(folder, network, size, rows)
                (folder / CARD).write_text(model_card(model, network, judge, license), encoding="utf-8")
                seal(folder)
        listed = {net.name: {"class": net.class_name, "parameters": net.parameters} for net in networks}
        mark = Mark(
            electra_lab=__version__,
            run=model.run.config["name"],
            step=model.run.step,
            length=model.length,
            networks=listed,
        )
        (building / MARK).write_text(json.dumps(mark.model_dump(), indent=2) + "\n", encoding="utf-8")
    return Exported(destination, model.run.step, networks)


def encoders(model: TrainedModel) -> list[Part]:
    """Return the discriminator without its head, if a class that tasks have, too, is written for it."""
    part = model.parts.get("discriminator")
    if part is None or part.class_ending in ("ForPreTraining", "ForMaskedLM", "Model"):
        return []
    tensors = {name: tensor for name, tensor in part.tensors.items() if not head_of(name)}
    return [replace(part, name="encoder", tensors=tensors)]


def exportable(model: TrainedModel, part: Part) -> Exportable:
    """Describe a network of a run. Raises CheckpointError if its tensors do not fit its config."""
    assert model.tokenizer is not None
    assert model.run is not None
    notes: list[str] = []
    limits: list[str] = []
    for name in part.other_heads:
        limits.append(f"The head `{name}` was not exported: transformers has no class for it.")
    part = part.without_other_heads()
    if part.family:
        part = part.family.with_pad(part, special_ids(model.tokenizer)["pad"])
    longest = part.embedding["max_length"]
    parameters = sum(tensor.numel() for tensor in part.tensors.values())
    usual = WRITTEN.get(part.backbone["type"])
    if usual and (lacking := usual.lacking(part.backbone)):
        limits.append(f"{usual.prefix}Config of transformers has no `{lacking[0]}`: this is the lab's own format.")
    if part.family:
        limits += part.family.limits(part.backbone, part.embedding)
    if part.backbone["type"] != "bert":  # only the backbone itself knows the lengths that it can read, and its buffers
        network = build_network(part, pad_id=0)
        longest = network.longest(longest)
        parameters = size_of(network)
    described = Exportable(part, describe(part, model.tokenizer, part.family), parameters, longest, notes, limits)
    if part.class_ending == "ForTokenClassification":
        limits.append(
            "To fine-tune in transformers, load the folder `encoder`. From this folder, the classes of tasks would "
            "silently use the detection layers."
        )
    elif described.head == "replaced" and "tokens" in part.heads:
        notes.append("The file also has a masked language modelling head, for `AutoModelForMaskedLM`.")
    if "energy" in part.heads:
        notes.append("The file also has the head `energy`, for `electra-lab score --by energy` and minimal pairs.")
    if other_ids := electra_options(model.tokenizer)[1]:
        notes.append(other_ids)
    if part.plugin:
        place = "is in this folder, in" if part.plugin_source else "comes with the installed package"
        notes.append(f"The backbone `{part.backbone['type']}` is a plug-in, which {place} `{part.plugin}`.")
    if model.run.others:
        limits.append(f"Parameters of the objective itself were not exported: {', '.join(model.run.others)}.")
    for other_part in model.parts.values():
        if not other_part.learned:
            name = other_part.backbone["type"]
            limits.append(f"The generator, `{name}`, learned nothing and was not exported.")
    return described


def refuse_to_replace(destination: Path, *, onnx: bool, int8: bool) -> None:
    """Raise ConfigError unless a folder is absent, empty or an unchanged export, and if an ONNX file would be lost."""
    if not destination.exists() or (destination.is_dir() and not any(destination.iterdir())):
        return
    folders = _networks(destination)
    if not folders:
        raise ConfigError(f"{destination}: exists, and is not an earlier export. Choose another folder.")
    wrong, exported = list[str](), {destination / MARK}
    for folder in folders:
        if problem := damage(folder):
            wrong.append(str(folder.relative_to(destination) / problem))
            continue
        exported |= {folder / file for file in (MANIFEST, *read_json(folder / MANIFEST))}
    # A link is deleted as a file is, wherever it leads.
    files = [path for path in sorted(destination.rglob("*")) if path.is_symlink() or not path.is_dir()]
    wrong += [f"{path} was added" for path in files if path not in exported] if not wrong else []
    if wrong:
        raise ConfigError(
            f"{destination}: was edited or damaged after the export ({wrong[0]}). Delete it, or choose another folder."
        )
    for file, option, written in ((ONNX, "--onnx", onnx), (INT8, "--int8", int8)):
        if not written and any(path.name == file for path in files):
            raise ConfigError(
                f"{destination}: has {file}, which would be lost. Add {option}, or choose another folder."
            )


def _networks(destination: Path) -> list[Path]:
    """Return the folders of an earlier export, which is a pair or one model; none of anything else."""
    try:
        mark = read_mark(destination)
    except DataError:
        return []
    if mark:
        return [destination / name for name in mark.networks]
    alone = all((destination / name).is_file() for name in (CONFIG, MANIFEST))
    part = is_seed(destination.parent) or (destination.parent / MARK).is_file()  # of a fine-tuning or a pair
    return [destination] if alone and not part else []


def write_onnx_files(
    folder: Path, module: NamedOutputs, vocabulary_size: int, longest: int, size: Size | None,
    rows: list[Rows] | None, text: str,
) -> tuple[list[str], Change | None]:  # fmt: skip
    """Write model.onnx and, with rows, if only an empty list, model_int8.onnx; return notes, and what int8 changes.

    text  describes the tokens of the rows
    """
    from electra_lab.export.onnx import INPUTS, write_onnx

    write_onnx(folder / ONNX, module, vocabulary_size, longest, size)
    inputs, outputs = ("`, `".join(names) for names in (INPUTS, module.outputs))
    sizes = f"batches of {size[0]} x {size[1]} tokens alone" if size else f"rows of at most {longest} tokens"
    notes, change = [f"`{ONNX}` turns `{inputs}` into `{outputs}`, for {sizes}."], None
    if rows is not None:
        from electra_lab.export.int8 import write_int8

        change = write_int8(folder / ONNX, module, rows, text, vocabulary_size, longest, size)
        notes.append(f"`{INT8}` next to it: {change}.")
    return notes, change


def _write_onnx(folder: Path, network: Exportable, size: Size | None, rows: list[Rows] | None) -> None:
    from electra_lab.export.onnx import NamedOutputs

    vocabulary_size, module = network.config["vocab_size"], build_network(network.part, network.config["pad_token_id"])
    sizes = vocabulary_size, network.longest, size
    notes, change = write_onnx_files(folder, NamedOutputs(module), *sizes, rows, "tokens of the run's test text")
    network.notes.extend(notes)
    network.int8.extend([change] if change else [])


@contextmanager
def whole(destination: Path) -> Iterator[Path]:
    """Yield a folder that takes the place of `destination` in the end; a killed process leaves no part of either."""
    busy = destination.with_name(f".{destination.name}.lock")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with lock(busy) as is_locked:
            if not is_locked:
                raise InUse(f"{destination}: another process is exporting to it.")
            try:
                with new_folder(destination) as building:
                    yield building
            finally:
                busy.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{destination}: cannot be written ({reason}). Nothing was exported.") from None

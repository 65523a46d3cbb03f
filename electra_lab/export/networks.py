"""The networks of a run as models of transformers: class, config.json, tensors, and what they lack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from electra_lab.backbones.bert import Bert
from electra_lab.config.component import Component
from electra_lab.export.tokenizer import electra_options
from electra_lab.model.embeddings import LAYER_NORM_EPS, SEGMENTS
from electra_lab.model.initialise import STANDARD_DEVIATION
from electra_lab.model.network import Network
from electra_lab.model.weights import own_tensors
from electra_lab.pretrained.opened import Opened
from electra_lab.pretrained.transformers_names import to_transformers
from registry import Plugin, backbones, heads

CLASSES = ("ForPreTraining", "ForMaskedLM")  # of transformers; the first that a network has a head for is written
REGISTER = "import electra_lab.interop.hugging_face  # pip install 'electra-lab[hugging-face]'"


@dataclass(frozen=True)
class Exportable:
    """A network of a run, ready to be written."""

    name: str  # in the experiment
    network: Network
    component: Component  # the backbone
    head: str  # that decides the class
    config: dict[str, Any]  # config.json
    longest: int  # input, in tokens
    plugin: Plugin | None  # that defines the backbone
    notes: list[str]  # on loading it
    limits: list[str]  # what the folder lacks

    @property
    def plain(self) -> bool:
        """Return True if transformers knows the architecture itself."""
        return type(self.network.backbone) is Bert

    @property
    def class_name(self) -> str:
        name: str = self.config["architectures"][0]
        return name

    @property
    def auto_class(self) -> str:
        return "AutoModel" + _ending(self.head).removeprefix("Model")

    @property
    def parameters(self) -> int:
        left_out: set[nn.Parameter] = set()
        for head in others(self.network):
            left_out.update(self.network.heads[head].parameters())
        return sum(parameter.numel() for parameter in self.network.parameters() if parameter not in left_out)

    @property
    def plugin_file(self) -> str | None:
        """The name of the plug-in's copy beside the weights; one that was installed is not copied."""
        return self.config.get("plugin") if self.plugin and not self.plugin.package else None

    def before_loading(self, folder: str) -> list[str]:
        """Return the lines of Python that must run before transformers can load `folder`."""
        if self.plain:
            return []
        if not self.plugin_file:
            return [REGISTER]
        file = f"{folder}/{self.plugin_file}"
        load = f"registry.load_plugin(pathlib.Path({file!r}))  # read it first"
        return [REGISTER, "import pathlib", "import registry", load]


def others(network: Network) -> list[str]:
    """Return the names of the heads that transformers has no class for."""
    return [name for name in network.heads if heads.get(name).declared["exports_as"] is None]


def _ending(head: str) -> str:
    """Return the ending of the class that has this head, and that of the encoder alone for no head."""
    return str(heads.get(head).declared["exports_as"]) if head else "Model"


def tensors_of(network: Network) -> dict[str, Tensor]:
    """Return the tensors of a network by the names that transformers knows; what the network shares is there once.

    Heads that transformers has no class for are left out.
    """
    left_out = tuple(f"heads.{name}." for name in others(network))
    if type(network.backbone) is Bert:
        named = to_transformers(network).items()
        return {name: tensor.contiguous() for name, tensor in named if not name.startswith(left_out)}
    own = {name: tensor for name, tensor in own_tensors(network).items() if not name.startswith(left_out)}
    first = dict[int, str]()
    once = {name: tensor for name, tensor in own.items() if first.setdefault(id(tensor), name) == name}
    return {f"electra_lab.network.{name}": tensor.detach().contiguous() for name, tensor in once.items()}


def exportable(opened: Opened) -> Iterator[Exportable]:
    """Yield the networks of a run, the discriminator first. A generator that learns nothing is left out."""
    config = opened.loaded.config
    for name, component in (("discriminator", config.discriminator), ("generator", config.generator)):
        network = opened.networks.get(name)
        if isinstance(network, Network) and component is not None:
            yield _exportable(opened, name, network, component)


def _exportable(opened: Opened, name: str, network: Network, component: Component) -> Exportable:
    config = opened.loaded.config
    exported = {heads.get(name).declared["exports_as"]: name for name in network.heads}
    head = next((exported[ending] for ending in CLASSES if ending in exported), "")
    shared = {"vocab_size": opened.vocabulary.size, "pad_token_id": opened.vocabulary.pad_id, "dtype": "float32"}
    plugin = next((p for p in opened.loaded.plugins if p.file == backbones.get(component.type).file), None)
    known = {code.sha256: Path(code.file).name for code in opened.provenance.plugins}
    notes, limits = [], []
    if isinstance(network.backbone, Bert) and type(network.backbone) is Bert:
        described = _electra(config, component, network.backbone) | shared
        if config.embedding.dropout != described["hidden_dropout_prob"]:
            limits.append(
                f"ElectraConfig has no dropout of embeddings; {config.embedding.dropout} was used in training."
            )
    else:
        described = {
            "model_type": "electra_lab",
            "backbone": component.dump(),
            "embedding": config.embedding.model_dump(mode="json", include={"dim", "max_length", "dropout"}),
            "plugin": plugin and (plugin.package or known.get(plugin.sha256, plugin.file.name)),
        } | shared
    prefix = "Electra" if described["model_type"] == "electra" else "ElectraLab"
    described = {"architectures": [prefix + _ending(head)]} | described
    limits += [f"The head `{name}` was not exported: transformers has no class for it." for name in others(network)]
    if head == "replaced" and "tokens" in network.heads:
        notes.append("The file has a masked language modelling head too, for `AutoModelForMaskedLM`.")
    if other := electra_options(opened.tokenizer)[1]:
        notes.append(other)
    if plugin:
        where = "comes with the installed package" if plugin.package else "is in this folder, in"
        notes.append(f"The backbone `{component.type}` is a plug-in, which {where} `{described['plugin']}`.")
    networks = {p for each in opened.networks.values() for p in each.parameters()}
    if own := [n for n, parameter in opened.objective.named_parameters() if parameter not in networks]:
        limits.append(f"Parameters of the objective itself were not exported: {', '.join(own)}.")
    if config.generator and not config.generator.sizes:
        limits.append(f"The generator, `{config.generator.type}`, learned nothing and was not exported.")
    longest = network.longest(config.embedding.max_length)
    return Exportable(name, network, component, head, described, longest, plugin, notes, limits)


def _electra(config: Any, component: Component, backbone: Bert) -> dict[str, Any]:
    """Return the keys of ElectraConfig that describe a network around `bert`."""
    sizes, dropout = component.sizes, component.keywords()["dropout"]
    assert sizes is not None
    return {
        "model_type": "electra",
        "embedding_size": config.embedding.dim,
        "hidden_size": sizes.dim,
        "num_hidden_layers": sizes.depth,
        "num_attention_heads": sizes.heads,
        "intermediate_size": backbone.inner,
        "hidden_act": "gelu",
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "max_position_embeddings": config.embedding.max_length,
        "type_vocab_size": SEGMENTS,
        "initializer_range": STANDARD_DEVIATION,
        "layer_norm_eps": LAYER_NORM_EPS,
        "tie_word_embeddings": True,
    }

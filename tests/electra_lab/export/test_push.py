"""electra-lab push, against a hub on this machine."""

import hashlib
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError

from electra_lab.export.card import finetuned_card
from electra_lab.export.export import export
from electra_lab.export.model_folder import copy_folder
from electra_lab.export.push import REFUSALS, Pushed, _in_a_sentence, push
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.pretrained.opening import model_of_finetuning, open_model
from registry.errors import CheckpointError, ConfigError, DataError
from tests.electra_lab.export.exports import finished
from tests.electra_lab.export.hub import TOKEN, Hub
from tests.electra_lab.jobs.finetuning.small import write_finetuning
from tests.electra_lab.jobs.pretraining.tiny import for_a_module, lines
from tests.scorecard.lab import Ended, Lab

Push = Callable[..., Ended]
COMMIT = "POST /api/models/me/x/commit/main"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run with checkpoints of the steps 0 and 5, which are milestones, 8 and 12."""
    with for_a_module():
        checkpoint = "{every: 4, keep: 2, milestones: {tokens: [300]}}"
        yield finished(tmp_path_factory.mktemp("pushed"), checkpoint=checkpoint)


@pytest.fixture
def hub() -> Iterator[Hub]:
    served = Hub()
    yield served
    served.shutdown()
    served.server_close()


@pytest.fixture
def pushed(forks: Lab, hub: Hub, run: Path, tmp_path: Path) -> Push:
    """`pushed("--milestones")` pushes the run to me/x and checks that the token is never printed."""

    def call(*words: object, model: Path = run, **environment: str) -> Ended:
        here = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": TOKEN,
                "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}  # fmt: skip
        ended = forks("push", model, "me/x", *words, cwd=tmp_path, environment=here | environment)
        assert not ended.traced, ended.err
        assert TOKEN not in ended.out + ended.err
        assert not any(TOKEN in file.read_text(errors="ignore") for file in tmp_path.rglob("*") if file.is_file())
        return ended

    return call


def test_a_new_repository_has_the_milestones_as_branches_and_main_last(
    hub: Hub, pushed: Push, run: Path, tmp_path: Path
) -> None:
    ended = pushed("--milestones", "--license", "mit", "--language", "en", "--json")
    assert ended.code == 0, ended
    repository, answers = hub.repositories["me/x"], [json.loads(line) for line in ended.out.splitlines()]
    branches = {"step-0": 0, "tokens-300": 5, "main": 12}
    assert [(answer["branch"], answer["step"]) for answer in answers] == list(branches.items())
    assert repository.private
    # A branch is created before its files are sent, and main comes last.
    words = [request.split("/me/x/")[-1] for request in hub.requests]
    order = [word for word in words if word.startswith(("branch/", "preupload/", "commit/"))]
    new = [f"{act}/{name}" for name in ("step-0", "tokens-300") for act in ("branch", "preupload", "commit")]
    assert order == [*new, "preupload/main", "commit/main"]
    # The weights are those of the steps. Their storage is a third party's and gets no token.
    for (branch, step), answer in zip(branches.items(), answers, strict=True):
        export(run, tmp_path / branch, step)
        tree = repository.trees[branch]
        assert tree.keys() == answer["files"].keys()
        for name, place in {"": "discriminator", "generator/": "generator"}.items():
            weights = (tmp_path / branch / place / "model.safetensors").read_bytes()
            oid = hashlib.sha256(weights).hexdigest()
            assert tree[f"{name}model.safetensors"] == oid
            assert hub.objects[oid] == weights
    assert hub.tokens_at_storage == [None] * 6
    # The card has the given metadata and the numbers that the run measured.
    card = ModelCard(repository.trees["main"]["README.md"].decode()).data
    assert (card.license, card.language, card.library_name) == ("mit", ["en"], "transformers")
    test = lines(run, "test")[-1]
    found = {result.metric_type: result.metric_value for result in card.eval_results}
    assert found == {name: test[name] for name in found}
    assert found.keys() == {name for name in test if name.startswith("discriminator") and "gain" not in name}
    # The same command again sends nothing.
    hub.requests.clear()
    assert pushed("--milestones", "--license", "mit", "--language", "en").code == 0
    assert hub.said("PUT ") + hub.said("/commit/") + hub.said("/branch/") == []


def test_after_a_cut_connection_the_same_command_continues(hub: Hub, pushed: Push) -> None:
    hub.broken = {COMMIT: 0}
    assert pushed("--milestones").code == 3
    trees = hub.repositories["me/x"].trees
    assert ({*trees["main"]}, bool(trees["tokens-300"])) == (set(), True)
    hub.broken = {}
    hub.requests.clear()
    assert pushed("--milestones").code == 0
    assert (hub.said("PUT "), hub.said("/commit/")) == ([], [COMMIT])
    assert "model.safetensors" in trees["main"]


def test_what_another_writer_has_done_meanwhile_stays(hub: Hub, pushed: Push) -> None:
    hub.meanwhile = "main"
    ended = pushed()
    assert (ended.code, "412" in ended.last) == (3, True)
    assert hub.repositories["me/x"].trees["main"] == {}


def test_a_public_repository_is_used_only_on_request(hub: Hub, pushed: Push) -> None:
    for words, said in (((), False), (("--public",), True)):
        ended = pushed(*words)
        assert (ended.code, "stays private" in ended.err) == (0, said)
    hub.repositories.clear()
    assert pushed("--public").code == 0
    assert not hub.repositories["me/x"].private
    hub.requests.clear()
    ended = pushed("--step", "8")
    assert (ended.code, "--public" in ended.err) == (2, True)
    assert hub.said("preupload") + hub.said("PUT") + hub.said("commit") == []


def test_nothing_is_sent_offline_without_a_token_or_with_a_wrong_one(hub: Hub, pushed: Push) -> None:
    assert pushed(HF_TOKEN="").code == 3
    ended = pushed(HF_HUB_OFFLINE="1")
    assert (ended.code, "HF_HUB_OFFLINE" in ended.err) == (2, True)
    assert hub.requests == []
    ended = pushed(HF_TOKEN="hf_other")
    assert (ended.code, "(401)" in ended.last) == (3, True)
    assert hub.repositories == {}


@pytest.mark.parametrize("status", [*REFUSALS, 400, 500, 503])
def test_every_refusal_is_a_sentence_without_the_token(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Threads that send files wrap the error; a server may repeat the token."""

    class Response:
        status_code, headers, request = status, {}, None

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    refused = HfHubHTTPError(f"no\n{TOKEN}", response=Response(), server_message=TOKEN)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=rf"^me/x: .*\({status}\).*\.$") as error, _in_a_sentence("me/x"):
        raise RuntimeError("a thread failed") from refused
    assert TOKEN not in str(error.value)


def test_a_dry_run_lists_the_files_and_uses_no_network(lab: Any, run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refused)
    code, out, _ = lab("push", run, "me/x", "--dry-run", "--best", "--json")
    answer = json.loads(out)
    assert (code, answer["sent"], answer["url"], answer["branch"]) == (0, False, None, "main")
    export(run, tmp_path / "out", "best")
    for name in ("config.json", "model.safetensors"):
        assert answer["files"][name] == (tmp_path / "out" / "discriminator" / name).stat().st_size
        assert answer["files"][f"generator/{name}"] == (tmp_path / "out" / "generator" / name).stat().st_size
    # An export has the same files; one of its networks can be pushed alone. Its card may be edited, its weights not.
    card = tmp_path / "out" / "discriminator" / "README.md"
    card.write_text(card.read_text() + "\nMine.\n")
    generator = {name.removeprefix("generator/") for name in answer["files"] if "/" in name}
    for folder, files in (("out", {*answer["files"]}), ("out/generator", generator)):
        code, out, _ = lab("push", tmp_path / folder, "me/x", "--dry-run", "--json")
        assert (code, {*json.loads(out)["files"]}) == (0, files)
    (tmp_path / "out" / "generator" / "model.safetensors").write_bytes(b"")
    assert "model.safetensors" in lab.fails(3, "push", tmp_path / "out", "me/x", "--dry-run")


REFUSED = [("run", "x"), ("run", "me/a/b"), ("run", "me/a--b"), ("run", "me/x", "--step", "8", "--best"),
           ("none", "me/x"), (".", "me/x"), ("out", "me/x", "--best")]  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_pushed(lab: Any, run: Path, words: tuple[str, ...]) -> None:
    if words[0] == "out":
        export(run, Path("out"))
    lab.fails(2, "push", run if words[0] == "run" else words[0], *words[1:], "--dry-run")


def dry(model: Path, **options: Any) -> list[Pushed]:
    return list(push(model, "me/x", metadata={}, dry_run=True, say=print, **options))


def test_a_stopped_run_pushes_the_milestones_that_it_has_reached(run: Path, tmp_path: Path) -> None:
    """Its provenance has all that were planned. They come in the order of their steps."""
    stopped = shutil.copytree(run, tmp_path / "stopped")
    written = json.loads((stopped / "provenance.json").read_text())
    written["milestones"] = {"early": 5, "first": 0}
    (stopped / "provenance.json").write_text(json.dumps(written))
    for step in (12, 8, 5):
        shutil.rmtree(stopped / "checkpoints" / f"step-{step:08d}")
        reached = [("first", 0), ("early", 5)][: 1 + (step > 5)]
        *branches, main = [(push.branch, push.step) for push in dry(stopped, milestones=True)]
        assert (branches, main) == (reached, ("main", {12: 8, 8: 5, 5: 0}[step]))


def test_a_run_without_milestones_pushes_the_checkpoints_that_it_keeps(run: Path, tmp_path: Path) -> None:
    plain = shutil.copytree(run, tmp_path / "plain")
    written = json.loads((plain / "provenance.json").read_text())
    (plain / "provenance.json").write_text(json.dumps({**written, "milestones": {}}))
    found = [(push.branch, push.step) for push in dry(plain, milestones=True)]
    assert found == [("step-0", 0), ("step-5", 5), ("step-8", 8), ("main", 12)]
    for step in (0, 5, 8):
        shutil.rmtree(plain / "checkpoints" / f"step-{step:08d}")
    with pytest.raises(CheckpointError, match=r"checkpoint\.milestones"):
        dry(plain, milestones=True)


def test_a_pushed_pair_opens_again(run: Path, tmp_path: Path) -> None:
    """The hub's layout: the discriminator at the root, where transformers looks, and the generator below."""
    export(run, tmp_path / "out")
    shutil.move(tmp_path / "out" / "discriminator", tmp_path / "repository")
    shutil.move(tmp_path / "out" / "generator", tmp_path / "repository" / "generator")
    alone = open_model(tmp_path / "repository")
    assert list(alone.parts) == ["discriminator"]
    shutil.move(tmp_path / "out" / "export.json", tmp_path / "repository" / "export.json")
    opened, ours = open_model(tmp_path / "repository"), open_model(run)
    assert (opened.parts.keys(), opened.length) == (ours.parts.keys(), ours.length)
    assert all(part.backbone["dim"] == ours.parts[name].backbone["dim"] for name, part in opened.parts.items())
    assert list(open_model(tmp_path / "repository", network="generator").parts) == ["generator"]


def test_a_fine_tuned_model_has_a_card_with_its_results(run: Path, tmp_path: Path) -> None:
    with for_a_module():
        path = finetune(write_finetuning(tmp_path, run), ["task.head=dense", "seeds=[0, 3]"], tmp_path / "fine", "cpu")
        (found,) = dry(path / "seed-3")
        with pytest.raises(ConfigError, match="has 2 models"):
            dry(path)
        alone = shutil.copytree(path, tmp_path / "alone", ignore=shutil.ignore_patterns("seed-0"))
        assert dry(alone)[0].files.keys() == found.files.keys()
        assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= found.files.keys()
        with pytest.raises(ConfigError, match="not a run directory"):
            dry(path / "seed-3", step=3)
    card = ModelCard(finetuned_card(path / "seed-3" / "model"))
    copy_folder(path / "seed-3" / "model", tmp_path / "copy")  # away from its results
    assert (tmp_path / "copy" / "README.md").read_text() == finetuned_card(path / "seed-3" / "model")
    (path / "seed-3" / "model" / "README.md").write_text("mine")
    copy_folder(path / "seed-3" / "model", tmp_path / "with its own card")
    assert (tmp_path / "with its own card" / "README.md").read_text() == "mine"
    assert ": seed 3, after" in card.content
    # The model of another seed, and a damaged one, are refused.
    other = Path(shutil.copytree(path, tmp_path / "other"))
    shutil.rmtree(other / "seed-3" / "model")
    shutil.copytree(other / "seed-0" / "model", other / "seed-3" / "model")
    (other / "seed-0" / "model" / "config.json").write_text("{}")
    for seed, wrong in (("seed-3", "MANIFEST.json"), ("seed-0", "config.json")):
        with pytest.raises(CheckpointError, match=f"{seed}/model.*{wrong}"):
            model_of_finetuning(other / seed)
    assert card.data.pipeline_tag == "text-classification"
    results = json.loads((path / "seed-3" / "results.json").read_text())["splits"]
    measured = {(split, name): value for split in results for name, value in results[split]["metrics"].items()}
    found = {(result.dataset_split, result.metric_type): result.metric_value for result in card.data.eval_results}
    # Shares of examples that the rows lack and baselines are in the table, but are not results of the model.
    baselines = {("validation", f"constant_{name}") for name in ("accuracy", "f1", "matthews")}
    assert measured.keys() - found.keys() == {("validation", "cut_examples"), *baselines}
    assert found == {key: value for key, value in measured.items() if key in found}
    assert {*card.data.metrics} == {name for _, name in found}
    assert "cut examples" in card.content
    # Neither folder of this machine: the model's is not below that of the fine-tuning.
    assert f"A fine-tuning of {run.name} on" in card.content
    assert str(tmp_path) not in card.content
    assert str(run.parent) not in card.content

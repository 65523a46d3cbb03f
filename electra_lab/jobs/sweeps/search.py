"""A search: an ablation whose variants Optuna proposes one after another. Its study is a journal in the folder.

A trial is a variant with all seeds, so its cells are trained, measured and resumed like all others. It is "running" in
the journal until its cells are done, even if its process was killed: then another process completes it.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock

from electra_lab.analysis.results import cell_result, left_to_do, read
from electra_lab.config.source import Node, keys_of
from electra_lab.jobs.identity import content_of
from electra_lab.jobs.lifecycle import Pruned
from electra_lab.jobs.sweeps.file import Ablation, load_ablation, read_ablation
from electra_lab.jobs.sweeps.plan import checked, plan_of, write_plan
from electra_lab.jobs.sweeps.variants import BASE, short
from electra_lab.storage.ablation_folder import AblationFolder, is_ablation_folder
from electra_lab.storage.catalog import has_diverged
from electra_lab.storage.plan import Plan, PlannedSearch, Trial
from electra_lab.training.random import digest
from registry.errors import CheckpointError, ConfigError

LOSSES = "generator_mask_loss", "discriminator_token_mask_loss"  # at [MASK]: of the generator, or of an MLM
DIGITS = 4  # of a proposed number: more make no difference, and are hard to read


def refuse_missing() -> None:
    """Raise ConfigError if Optuna is not installed."""
    if not find_spec("optuna"):
        raise ConfigError("a search needs optuna. Install it: pip install 'electra-lab[search]'.")


def _optuna() -> Any:
    refuse_missing()
    return import_module("optuna")


class _Lock:
    """The lock of the journal, free once its process has ended; the file is mended if that wrote half a line."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._lock = journal, FileLock(journal.with_suffix(".lock"))

    def acquire(self) -> bool:
        self._lock.acquire()
        with self._journal.open("r+b") as file:
            text = file.read()
            file.truncate(text.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._lock.release()


def open_study(folder: AblationFolder, plan: Plan, seed: int = 0) -> Any:
    """Open the study of a folder, or begin it. `seed` determines the next proposal."""
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    journal = folder.path / "study.log"
    backend = optuna.storages.journal.JournalFileBackend(str(journal), lock_obj=_Lock(journal))
    try:
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
            study_name="search",
            direction="maximize" if plan.metrics[plan.metric].higher_is_better else "minimize",
            load_if_exists=True,
        )
    except (ValueError, KeyError) as error:  # a line that is no JSON, or of another form
        cure = "Remove it and plan.json: trials that are proposed again are not trained again"
        raise CheckpointError(f"{journal}: is damaged ({error}). {cure}.") from None


def judge_of(folder: AblationFolder, plan: Plan, variant: str) -> Callable[[Mapping[str, Any]], None] | None:
    """Return the function that ends a cell of a trial when it does worse than others; None for all other cells."""
    if not (plan.search and plan.search.prune):
        return None
    numbers = [trial.number for trial in plan.search.begun if trial.variant == variant != BASE]
    if not numbers:
        return None
    study = open_study(folder, plan)
    trial = _reopened(study, numbers[0])
    sign = 1 if plan.metrics[plan.metric].higher_is_better else -1

    def judge(values: Mapping[str, Any]) -> None:
        name = next((name for name in LOSSES if values.get(name) is not None), None)
        if name is None:
            return
        with warnings.catch_warnings(action="ignore"):  # a resumed cell reports the same numbers again
            trial.report(-sign * values[name], values["step"])
        if trial.should_prune():
            loss, step = values[name], values["step"]
            raise Pruned(f"pruned after step {step}: its {name}, {loss:.4f}, is worse than the median of other trials.")

    return judge


@dataclass
class Search:
    """A search in its folder, as one process sees it.

    say      prints a line
    prepare  reads the text of an ablation, before its plan is made
    failed   variants with a cell that has failed in this command
    """

    file: Path
    overrides: Sequence[str]
    folder: AblationFolder
    base: Ablation
    say: Callable[[str], None]
    prepare: Callable[[Ablation], None]
    failed: set[str] = field(default_factory=set)

    @cached_property
    def _options(self) -> Any:
        return self.base.config.search

    @cached_property
    def _space(self) -> dict[str, Node]:
        return keys_of(keys_of(read_ablation(self.file, self.overrides)[0])["vary"])

    def begin(self) -> None:
        """Write the plan, with the base alone if the search is new. Raises ConfigError if the folder has another."""
        self.prepare(self.base)
        with self.folder.claimed("plan", wait=True):
            earlier = self.folder.plan if (self.folder.path / "plan.json").is_file() else None
            options, space = self._options, dict(self.base.config.vary)
            if earlier and (earlier.search is None or _fixed(earlier) != _fixed(plan_of(self.base), space)):
                reason = "holds another plan; of a search, only `trials`, `budget`, `prune` and `confirm` may change"
                raise ConfigError(f"--out {self.folder.path}: {reason}. Choose another folder.")
            state = PlannedSearch(trials=options.trials, space=space, prune=options.prune, budget=options.budget)
            plan = write_plan(self.base, self.folder, earlier, state)
            self._noted(plan if earlier else self._with_trials(plan))

    def _with_trials(self, plan: Plan) -> Plan:
        """Return the plan with the cells of all trials in the study, if plan.json was lost."""
        study = open_study(self.folder, plan)
        for trial in _trials(study):
            label = f"trial {trial.number}"
            if trial.user_attrs.get("variant") == label:
                nodes = self._values(_reopened(study, trial.number))
                ablation = checked(load_ablation(self.file, self.overrides, {label: nodes}))
                plan = write_plan(ablation, self.folder, plan)
        return plan

    def take(self, at_once: int, claims: ExitStack) -> tuple[Plan, list[str]]:
        """Take up to `at_once` trials: those that a dead process has left behind, then new ones.

        Returns the plan, and the ids of everything to do: the cells of these trials, of the base, and references; none
        if no trial is left. The trials belong to this process as long as `claims` are held.
        """
        with self.folder.claimed("plan", wait=True):
            plan, labels = self._noted(self.folder.plan), set[str]()
            number, study = 0, open_study(self.folder, plan)
            while len(labels) < at_once and (number < len(_trials(study)) or (plan.search and plan.search.may_begin)):
                begun = plan.search.begun if plan.search else []
                if number == len(begun) or (begun[number].state == "running" and self._is_free(number, claims)):
                    claims.enter_context(self.folder.claimed(f"trial-{number}"))
                    plan = self._proposed(plan, number)
                    last = plan.search.begun[number] if plan.search else None
                    labels |= {last.variant} - self.failed if last and last.state == "running" else set()
                number += 1
            mine = list[str]()
            for cell in plan.cells:
                if cell.variant in (labels | {BASE}) - self.failed and cell_result(self.folder, plan, cell.id).missing:
                    mine.append(cell.id)
            return plan, [*plan.references, *mine] if mine else []

    def _is_free(self, number: int, claims: ExitStack) -> bool:
        """Return True if no other process works on a trial, and this one has not failed to."""
        begun = f"trial {number}"
        return begun not in self.failed and not self.folder.is_claimed(f"trial-{number}")

    def others(self) -> bool:
        """Return True if other processes are working on trials."""
        with self.folder.claimed("plan", wait=True):
            plan = self._noted(self.folder.plan)
        running = [trial.variant for trial in plan.search.begun if trial.state == "running"] if plan.search else []
        return not self.failed.issuperset(running)

    def _proposed(self, plan: Plan, number: int) -> Plan:
        """Let the study propose the values of a trial, unless it has done so before, and add its cells to the plan."""
        study = open_study(self.folder, plan, seed=seed_of(self._options.seed, number))
        trial = study.ask() if number == len(_trials(study)) else _reopened(study, number)
        nodes, label = self._values(trial), f"trial {number}"
        trial.set_user_attr("values", {key: node.plain() for key, node in nodes.items()})
        try:
            ablation = checked(load_ablation(self.file, self.overrides, {label: nodes}))
        except ConfigError as error:
            trial.set_user_attr("note", str(error))
            study.tell(number, state=_optuna().trial.TrialState.FAIL)
            self.say(f"{label}: refused: {error}")
            return self._noted(plan)
        # Values that were tried before are not tried again.
        contents = {cell.variant: content_of(ablation.loaded[cell.id]) for cell in ablation.cells}
        tried = {contents[BASE]: BASE}
        for earlier in _trials(study)[:number]:
            if "content" in earlier.user_attrs:
                tried.setdefault(earlier.user_attrs["content"], earlier.user_attrs["variant"])
        trial.set_user_attr("content", contents[label])
        trial.set_user_attr("variant", tried.get(contents[label], label))
        if contents[label] not in tried:
            self.prepare(ablation)
            plan = write_plan(ablation, self.folder, plan)
        return self._noted(plan)

    def _values(self, trial: Any) -> dict[str, Node]:
        """Return the values that a trial proposes."""
        values = dict[str, Node]()
        for key, node in self._space.items():
            if isinstance(node.value, list):
                choices = {short(choice.plain()): choice for choice in node.value}
                values[key] = choices[trial.suggest_categorical(key, [*choices])]
                continue
            bounds: Any = node.plain()
            low, high, log = bounds["low"], bounds["high"], bounds.get("log", False)
            if isinstance(low, int) and isinstance(high, int):
                values[key] = Node(trial.suggest_int(key, low, high, log=log), node.mark)
            else:
                number = float(f"{trial.suggest_float(key, low, high, log=log):.{DIGITS}g}")
                values[key] = Node(min(max(number, float(low)), float(high)), node.mark)
        return values

    def _noted(self, plan: Plan) -> Plan:
        """Tell the study which trials are done, and write the plan with the state of all."""
        assert plan.search
        study, values = open_study(self.folder, plan), dict[str, dict[int, float]]()
        self.folder.write_plan(plan)
        running = [trial for trial in _trials(study) if trial.state.name == "RUNNING"]
        if running:
            values = read(self.folder.path).values(plan.metric)
        for trial in running:
            if variant := trial.user_attrs.get("variant"):
                self._tell(study, trial.number, plan, variant, [*values.get(variant, {}).values()])
        begun = [_described(trial) for trial in _trials(study)]
        trials, budget = self._options.trials, self._options.budget
        spent = 0.0 if budget is None else _spent(self.folder, plan)  # reads the records of all trials
        state = {"begun": begun, "importances": _importances(study)}
        plan.search = plan.search.model_copy(update={**state, "trials": trials, "budget": budget, "spent": spent})
        self.folder.write_plan(plan)
        return plan

    def _tell(self, study: Any, number: int, plan: Plan, variant: str, values: list[float]) -> None:
        """Tell the study the outcome of a trial, if it has one. One that diverged is pruned, too."""
        states = _optuna().trial.TrialState
        results = {cell.id: cell_result(self.folder, plan, cell.id) for cell in plan.cells if cell.variant == variant}
        for id, result in results.items():
            if result.error and has_diverged(result.run.path):
                self.folder.note_pruned(id, result.error)
                self.folder.note_failure(id, None)
                results[id] = cell_result(self.folder, plan, id)
        if pruned := [result.pruned for result in results.values() if result.pruned]:
            _reopened(study, number).set_user_attr("note", pruned[0])
            study.tell(number, state=states.PRUNED)
        elif results and not any(result.missing for result in results.values()):
            if not values:
                _reopened(study, number).set_user_attr("note", f"has no {plan.metric}.")
            study.tell(number, fmean(values) if values else None, state=None if values else states.FAIL)

    def note_failures(self, plan: Plan) -> None:
        """Remember the variants whose cells have failed, which this command does not try again."""
        for cell in plan.cells:
            if cell_result(self.folder, plan, cell.id).status == "failed":
                self.failed.add(cell.variant)

    def confirmation(self) -> tuple[Ablation, Path] | None:
        """Return the ablation that compares the best trial with the base on fresh seeds, and its folder."""
        with self.folder.claimed("plan", wait=True):
            plan = self._noted(self.folder.plan)
            best = _best(plan) if self._options.confirm else BASE
            if best == BASE or plan.search is None:
                return None
            plan.search.confirmation = _confirmed_in(best)
            self.folder.write_plan(plan)
            study = open_study(self.folder, plan)
        nodes = self._values(_reopened(study, int(best.removeprefix("trial "))))
        ablation = checked(load_ablation(self.file, self.overrides, {best: nodes}, confirms=True))
        return ablation, self.folder.path / plan.search.confirmation


def is_searched(folder: AblationFolder, plan: Plan, search: Any) -> bool:
    """Return True if a search has all its trials, or has spent its budget, and has its confirmation."""
    found = plan.search
    if not found or any(trial.state == "running" for trial in found.begun) or left_to_do(folder, plan):
        return False
    if found.model_copy(update={"trials": search.trials, "budget": search.budget}).may_begin:
        return False
    best = _best(plan)
    if best == BASE or not search.confirm:
        return True
    if found.confirmation != _confirmed_in(best):
        return False
    confirmed = AblationFolder(folder.path / found.confirmation)
    return is_ablation_folder(confirmed.path) and not left_to_do(confirmed, confirmed.plan)


def _best(plan: Plan) -> str:
    """Return the variant of the best trial so far, the first of several; the base if there is none."""
    sign = 1 if plan.metrics[plan.metric].higher_is_better else -1
    done = [trial for trial in (plan.search.begun if plan.search else []) if trial.value is not None]
    return max(done, key=lambda trial: sign * (trial.value or 0.0)).variant if done else BASE


def _confirmed_in(variant: str) -> str:
    """Return the place of a confirmation in the folder of its search."""
    return f"confirm/{variant.replace(' ', '-')}"


def _spent(folder: AblationFolder, plan: Plan) -> float:
    """Return the training FLOPs of all trials so far."""
    spent = 0.0
    for cell in plan.cells:
        records = cell_result(folder, plan, cell.id).run.records() if cell.variant != BASE else []
        spent += max((record.get("flops") or 0.0 for record in records), default=0.0)
    return spent


def seed_of(search: int, number: int) -> int:
    """Return the seed of a trial's proposal, so that searches with different seeds share none."""
    return digest("trial", search, number) % 2**32


def _fixed(plan: Plan, space: Mapping[str, Any] | None = None) -> Any:
    """Return everything that makes trials comparable: the cells of the base, what is measured, and the space."""
    base = {cell.id for cell in plan.cells if cell.variant == BASE}
    searched = plan.search.space if plan.search else space
    return base, plan.metric, [measure.key for measure in plan.measures], searched


def _trials(study: Any) -> list[Any]:
    trials: list[Any] = study.get_trials(deepcopy=False)
    return trials


def _reopened(study: Any, number: int) -> Any:
    """Return a trial that has begun. What it has suggested before, it suggests again."""
    return _optuna().trial.Trial(study, _trials(study)[number]._trial_id)


def _described(trial: Any) -> Trial:
    states: dict[str, Any] = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "refused"}
    state, attributes = trial.state.name, trial.user_attrs
    return Trial(
        number=trial.number,
        variant=attributes.get("variant", ""),
        values=attributes.get("values", {}),
        state=states.get(state, "running"),
        value=trial.value if state == "COMPLETE" else None,
        note=attributes.get("note", ""),
    )


def _importances(study: Any) -> dict[str, float]:
    """Return the share of each key in the variance of the results (fANOVA, Hutter et al. 2014); empty if unknown."""
    importance = _optuna().importance
    try:
        shares = importance.get_param_importances(study, evaluator=importance.FanovaImportanceEvaluator(seed=0))
    except (RuntimeError, ValueError):  # too few trials, or all with the same result
        return {}
    return {key: float(share) for key, share in shares.items()}

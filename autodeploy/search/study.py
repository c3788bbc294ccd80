"""Optuna on what enumeration cannot hold. The only module that imports it.

Shapes are split into groups; a group is one study in memory with its own seed, so the answer does not depend on
how many workers run them. Finished groups are mirrored into a storage under a name with the hash of all inputs:
a killed search resumes with the groups that it had finished, and other inputs are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import optuna
from optuna.distributions import IntDistribution
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock, JournalStorage

from autodeploy.errors import spec_error
from autodeploy.search.anneal import anneal, cost
from autodeploy.search.judge import Judge, Judged
from autodeploy.search.outer import FIELDS, Outer, Point, rule_points

Sampler = Literal["nsga2", "tpe", "random"]
POPULATION = 20
MUTATION = 0.25
POLISH_SHARE = 0.5
"""Share of the trials that go to annealing from the sampler's best."""
COMPLETE = "complete"
JOURNAL_HEAD = b'{"op_code":'
"""How a journal begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a study is run."""

    trials: int
    seed: int
    sampler: Sampler = "nsga2"
    seeded: bool = False
    """Begin with each shape cut by rule. Off: measured, it needs more simulations than a cold start (benchmarks)."""


def distributions(outer: Outer) -> dict[str, IntDistribution]:
    """One static space of ordered integers."""
    return {name: IntDistribution(0, size - 1) for name, size in zip(FIELDS, outer.sizes, strict=True)}


def make_sampler(settings: Settings, seed: int) -> optuna.samplers.BaseSampler:
    """The sampler of one study."""
    if settings.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    if settings.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=POPULATION, mutation_prob=MUTATION)


def run_study(judge: Judge, settings: Settings, seed: int) -> list[tuple[Point, Judged]]:
    """Ask, judge and tell; then anneal from the best and feed it back. Every point visited, in order."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="minimize", sampler=make_sampler(settings, seed))
    if settings.seeded:
        for point in rule_points(judge.outer):
            study.enqueue_trial(dict(zip(FIELDS, point, strict=True)))
    visited = _sample(study, judge, settings.trials - int(POLISH_SHARE * settings.trials))
    start = min(visited, key=lambda pair: cost(pair[1]))[0]
    for point, judged in anneal(judge, start, settings.trials - len(visited), np.random.default_rng(seed)):
        study.add_trial(_trial(judge.outer, point, judged))
        visited.append((point, judged))
    return visited


def _sample(study: optuna.Study, judge: Judge, trials: int) -> list[tuple[Point, Judged]]:
    space: dict[str, Any] = dict(distributions(judge.outer))
    visited = []
    for _ in range(trials):
        trial = study.ask(space)
        point = tuple(trial.params[name] for name in FIELDS)
        judged = judge(point)
        for name, value in _constraints(judged).items():
            trial.set_constraint(name, value)
        study.tell(trial, judged.step_s)
        visited.append((point, judged))
    return visited


def _constraints(judged: Judged) -> dict[str, float]:
    """Named constraints, at most 0 where kept; memory as the share of the device, and of the host, that is missing."""
    return {
        "legality": float(judged.broken_rules), "memory.device": judged.over_memory_frac,
        "memory.host": judged.over_host_frac,
    }  # fmt: skip


def _trial(outer: Outer, point: Point, judged: Judged) -> optuna.trial.FrozenTrial:
    return optuna.create_trial(
        params=dict(zip(FIELDS, point, strict=True)),
        distributions=dict(distributions(outer)),
        value=judged.step_s,
        constraints=_constraints(judged),
    )


def _recall(outer: Outer, trial: optuna.trial.FrozenTrial) -> tuple[Point, Judged]:
    """A trial of a storage as it was judged."""
    point = tuple(trial.params[name] for name in FIELDS)
    missed = trial.constraints
    judged = Judged(
        plan=outer.plan(point),
        step_s=float(trial.value or 0.0),
        broken_rules=int(missed["legality"]),
        over_memory_frac=missed["memory.device"],
        over_host_frac=missed["memory.host"],
    )
    return point, judged


def open_storage(url: str | None) -> BaseStorage:
    """Memory, a journal file, or a database URL (`postgresql+psycopg://...`, `sqlite:///...`)."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if url is None:
        return InMemoryStorage()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if "://" in url:
                return RDBStorage(url)
            return JournalStorage(journal_file(Path(url)))
    except Exception as error:  # drivers and databases each have their own; all mean that it cannot be opened
        raise spec_error("--storage", f"cannot open {url!r}: {error}", "a file, or a database URL") from error


@contextmanager
def storage_at(url: str | None) -> Iterator[BaseStorage]:
    """A storage that is closed again."""
    storage = open_storage(url)
    try:
        yield storage
    finally:
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


def journal_file(path: Path) -> JournalFileBackend:
    """A journal on disk. A last line that a crash has torn is cut off: what is written after it could not be read.
    Raises `ValueError` for a file that is something else."""
    lock = JournalFileSymlinkLock(str(path))
    if path.is_file():
        lock.acquire()
        try:
            _mend(path)
        finally:
            lock.release()
    return JournalFileBackend(str(path), lock_obj=lock)


def _mend(path: Path) -> None:
    with path.open("rb+") as file:
        head = file.read(len(JOURNAL_HEAD))
        if not JOURNAL_HEAD.startswith(head):
            raise ValueError("not a journal")
        file.seek(0)
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Finished groups of one search in a storage."""

    storage: BaseStorage
    label: str
    """What the search is about; a storage holds one set of inputs for each label."""
    content_hash: str

    def name(self, group: int) -> str:
        """What the names of a group's studies begin with: each search that keeps it adds its own ending, so that none
        can disturb what another is still writing."""
        return f"{self.label}:{self.content_hash}:{group}"

    def check(self) -> None:
        """Raises `SpecError` where the storage holds the same label for other inputs."""
        for name in optuna.get_all_study_names(self.storage):
            label, rest, *_ = [*name.rsplit(":", 3), ""]
            if label == self.label and rest != self.content_hash:
                raise spec_error(
                    "--storage", f"holds a study of {label!r} for other inputs ({rest}, not {self.content_hash})",
                    "another storage, or the inputs it was made for",
                )  # fmt: skip

    def finished(self, group: int, outer: Outer) -> list[tuple[Point, Judged]] | None:
        """What a finished group visited, in order; None where it has to be run. A study that nobody completed is of a
        search that was killed, or that is still writing: neither counts."""
        for name in optuna.get_all_study_names(self.storage):
            if name.startswith(f"{self.name(group)}:"):
                study = optuna.load_study(study_name=name, storage=self.storage)
                if study.user_attrs.get(COMPLETE):
                    return [_recall(outer, trial) for trial in study.get_trials(deepcopy=False)]
        return None

    def keep(self, group: int, outer: Outer, visited: Sequence[tuple[Point, Judged]]) -> None:
        """Mirror a finished group."""
        name = f"{self.name(group)}:{uuid4().hex}"
        study = optuna.create_study(study_name=name, storage=self.storage, direction="minimize")
        study.add_trials([_trial(outer, point, judged) for point, judged in visited])
        study.set_user_attr(COMPLETE, True)

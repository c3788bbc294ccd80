"""Studies: one answer for one question however it is run; kept groups are taken up again, other inputs refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import pytest

from autodeploy.errors import SpecError
from autodeploy.search import study
from autodeploy.search.crew import Findings, groups_of, run_groups
from autodeploy.search.engine import Answer, Request, content_hash, free_bound_s, search
from autodeploy.search.enumerate import broken_rules
from autodeploy.search.evaluate import evaluate
from autodeploy.search.exact import search_exact
from autodeploy.search.judge import Judge, Judged
from autodeploy.search.outer import Outer, Point
from autodeploy.search.study import COMPLETE, Ledger, Settings, open_storage
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space, with_values
from tests.search.little import little_spaces, outer_of, simulated, some_points

TRIALS = 12
LABEL, CONTENT = f"little-{os.getpid()}", "0123456789ab"
"""The label is one of this process: others may test with the same database."""
POSTGRES = os.environ.get("AUTODEPLOY_TEST_POSTGRES", "")


def narrow() -> Space:
    """A space of six shapes, three groups of a study."""
    space = replace(little_spaces()["mtp"], name=LABEL)
    return with_values(space, tp=(1, 2), pp=(4,), vpp=(2, 3), ep=(16, 32))


@cache
def outer() -> Outer:
    """Its six best shapes."""
    return outer_of(narrow(), 6)


def run(ledger: Ledger, settings: Settings | None = None, workers: int = 1, **more: Any) -> Findings:
    """A study of that space."""
    return run_groups(outer(), settings or Settings(trials=TRIALS, seed=3), ledger, workers, **more)


def ledger_at(url: str | None) -> Ledger:
    """Finished groups at a place."""
    return Ledger(study.open_storage(url), LABEL, CONTENT)


def answer_of(**changed: Any) -> Answer:
    """A whole search by the `optuna` engine."""
    return search(narrow(), Request(**{"engine": "optuna", "trials": TRIALS, "top": 5, "solve": False, **changed}))


def test_the_same_seed_gives_the_same_answer_and_another_does_not() -> None:
    one, again, other = (
        run(ledger_at(None)),
        run(ledger_at(None)),
        run(ledger_at(None), Settings(trials=TRIALS, seed=4)),
    )
    assert one == again
    assert one.step_s.keys() != other.step_s.keys()


def test_every_trial_is_spent_and_every_group_run() -> None:
    found = run(ledger_at(None))
    assert (found.groups, found.trials, found.stopped) == (3, TRIALS, "")
    assert len(groups_of(outer())) == 3
    assert [plan for group in groups_of(outer()) for plan in group.shapes] == list(outer().shapes)


def test_what_a_study_finds_is_legal_fits_and_can_be_repeated() -> None:
    answer = answer_of(trials=120, top=20)
    assert any("|" in result.plan.layout for result in answer.results)
    for result in answer.results:
        assert broken_rules(narrow(), result.plan) == []
        assert result.fits
        assert evaluate(narrow(), result.plan) == result
        alone = simulated(narrow(), result.plan)
        assert alone is not None
        assert alone.step_s == result.step_time_s


def test_a_study_is_never_worse_than_the_plans_by_rule() -> None:
    ruled = search(narrow(), Request(engine="exact", top=5))
    answer = answer_of(trials=6)
    pairs = zip(answer.results, ruled.results, strict=True)
    assert all(one.step_time_s <= other.step_time_s for one, other in pairs)


def test_the_gap_of_a_study_follows_from_the_free_bound() -> None:
    answer = answer_of()
    best = answer.results[0].step_time_s
    assert answer.gap_frac == pytest.approx((best - free_bound_s(answer.outcomes[0])) / best, rel=1e-12)
    assert answer.status == "gap"


def test_simulations_are_plans_that_were_simulated() -> None:
    groups = [Judge(group) for group in groups_of(outer())]
    settings = Settings(trials=TRIALS // 3, seed=3)
    for number, judge in enumerate(groups):
        study.run_study(judge, settings, 3 + 2 * number)
    legal = sum(judged.broken_rules == 0 for judge in groups for judged in judge.known.values())
    assert run(ledger_at(None)).simulated == legal


@pytest.mark.slow
def test_workers_change_nothing_but_the_time() -> None:
    one, two = run(ledger_at(None)), run(ledger_at(None), workers=2)
    assert one == two
    answers = [answer_of(workers=workers) for workers in (1, 2, 3)]
    assert [each.results for each in answers] == [answers[0].results] * 3
    assert [each.facts() for each in answers] == [answers[0].facts()] * 3


REQUEST = Request(engine="optuna", trials=100, seed=1)
INPUTS: dict[str, Callable[[Space, Request], tuple[Space, Request]]] = {
    "trials": lambda s, r: (s, replace(r, trials=101)),
    "seed": lambda s, r: (s, replace(r, seed=2)),
    "sampler": lambda s, r: (s, replace(r, sampler="tpe")),
    "gbs": lambda s, r: (replace(s, job=replace(s.job, gbs=2 * s.job.gbs)), r),
    "seq_len": lambda s, r: (replace(s, job=replace(s.job, seq_len=2048)), r),
    "imbalance": lambda s, r: (replace(s, job=replace(s.job, expert_imbalance=1.3)), r),
    "mtp": lambda s, r: (replace(s, job=replace(s.job, mtp=False)), r),
    "devices": lambda s, r: (replace(s, devices=256), r),
    "model": lambda s, r: (replace(s, model=replace(s.model, hidden=s.model.hidden + 128)), r),
    "experts": lambda s, r: (replace(s, model=replace(s.model, moe=replace(s.model.moe, top_k=4))), r),
    "attention": lambda s, r: (
        replace(s, model=replace(s.model, attention=replace(s.model.attention, kv_rank=256))),
        r,
    ),
    "link": lambda s, r: (
        replace(s, cluster=replace(s.cluster, fabric=replace(s.cluster.fabric, latency_s=1e-3))),
        r,
    ),
    "profile": lambda s, r: (
        replace(s, target=replace(s.target, profile=replace(s.target.profile, grad_buckets=7))),
        r,
    ),
    "rules": lambda s, r: (replace(s, target=replace(s.target, rules=s.target.rules[:-1])), r),
    "values": lambda s, r: (with_values(s, mbs=(1, 2)), r),
    "order_of_values": lambda s, r: (with_values(s, tp=(2, 1)), r),
    "only": lambda s, r: (replace(s, only=("tp=1",)), r),
    "ban": lambda s, r: (replace(s, ban=("tp=1",)), r),
}
SAME: dict[str, Callable[[Space, Request], tuple[Space, Request]]] = {
    "workers": lambda s, r: (s, replace(r, workers=2)),
    "storage": lambda s, r: (s, replace(r, storage="study.log")),
    "top": lambda s, r: (s, replace(r, top=3)),
    "timeout": lambda s, r: (s, replace(r, timeout_s=5.0)),
    "names_as_asked": lambda s, r: (replace(s, inputs={"model": "a path"}), r),
}


@pytest.mark.parametrize("case", INPUTS)
def test_every_input_changes_the_hash(case: str) -> None:
    space, request = INPUTS[case](narrow(), REQUEST)
    assert content_hash(space, request) != content_hash(narrow(), REQUEST)


@pytest.mark.parametrize("case", SAME)
def test_what_does_not_change_the_answer_does_not_change_the_hash(case: str) -> None:
    space, request = SAME[case](narrow(), REQUEST)
    assert content_hash(space, request) == content_hash(narrow(), REQUEST)


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An SQLite file with the tables of a storage: making them takes longer than a test."""
    path = tmp_path_factory.mktemp("database") / "empty.db"
    storage: Any = open_storage(f"sqlite:///{path}")
    storage.remove_session()
    storage.engine.dispose()
    return path.read_bytes()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Every storage that a test opens; they are closed at its end."""
    found: list[Any] = []
    monkeypatch.setattr(study, "open_storage", lambda url: found.append(open_storage(url)) or found[-1])
    yield found
    for storage in found:
        if hasattr(storage, "engine"):
            storage.remove_session()
            storage.engine.dispose()


@pytest.fixture(params=["journal", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, empty_database: bytes, opened: list[Any]) -> Iterator[str]:
    """Places to keep a study. PostgreSQL only where there is one to test with."""
    del opened
    if request.param == "journal":
        yield str(tmp_path / "study.log")
        return
    if request.param == "sqlite":
        (tmp_path / "study.db").write_bytes(empty_database)
        yield f"sqlite:///{tmp_path / 'study.db'}"
        return
    if not POSTGRES:
        pytest.skip("PostgreSQL NOT TESTED: set AUTODEPLOY_TEST_POSTGRES to a URL such as postgresql+psycopg://...")
    _forget(POSTGRES)
    yield POSTGRES
    _forget(POSTGRES)


def _forget(url: str) -> None:
    """Remove what these tests keep in a database that lives longer than they do."""
    storage = study.open_storage(url)
    for name in optuna.get_all_study_names(storage):
        if name.startswith(f"{LABEL}:"):
            optuna.delete_study(study_name=name, storage=storage)


def no_study(*_: object) -> None:
    """Stands for a study where none may run."""
    raise AssertionError("a study was run")


def test_finished_groups_are_taken_from_the_storage(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(ledger_at(url))
    assert first == run(ledger_at(None))
    monkeypatch.setattr(study, "run_study", no_study)
    assert run(ledger_at(url)) == first


@pytest.mark.slow
def test_a_whole_search_is_resumed_and_other_inputs_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = answer_of(storage=url)
    assert first.results == answer_of().results
    for change in ({"trials": TRIALS + 1}, {"seed": 1}):
        with pytest.raises(SpecError, match="for other inputs") as caught:
            answer_of(storage=url, **change)
        assert first.study is not None
        assert first.study["content_hash"] in str(caught.value)
        assert caught.value.faults[0].path == "--storage"
    monkeypatch.setattr(study, "run_study", no_study)
    again = answer_of(storage=url)
    assert (again.results, again.facts()) == (first.results, first.facts())


def test_a_killed_study_goes_on_with_the_next_group(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, begun = study.run_study, []

    def killed(judge: Judge, settings: Settings, seed: int) -> list[tuple[Point, Judged]]:
        begun.append(seed)
        if len(begun) == 3:
            raise RuntimeError("killed")
        return whole(judge, settings, seed)

    monkeypatch.setattr(study, "run_study", killed)
    with pytest.raises(RuntimeError, match="killed"):
        run(ledger_at(url))
    monkeypatch.setattr(study, "run_study", lambda *words: begun.append(words[-1]) or whole(*words))
    begun.clear()
    resumed = run(ledger_at(url))
    assert begun == [3 + 2 * 2]  # the seed of the third group alone
    assert resumed == run(ledger_at(None))


def test_a_group_kept_by_half_is_done_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(ledger_at(None))
    ledger = ledger_at(url)
    half = optuna.create_study(study_name=f"{ledger.name(1)}:killed", storage=ledger.storage, direction="minimize")
    visited = study.run_study(Judge(groups_of(outer())[1]), Settings(trials=4, seed=0), 0)
    half.add_trials([study._trial(outer(), point, judged) for point, judged in visited])
    assert run(ledger_at(url)) == expected
    kept = ledger_at(url)
    names = [name for name in optuna.get_all_study_names(kept.storage) if name.startswith(kept.name(1))]
    found = [optuna.load_study(study_name=name, storage=kept.storage).user_attrs for name in names]
    assert sorted(found, key=len) == [{}, {COMPLETE: True}]
    monkeypatch.setattr(study, "run_study", no_study)
    assert run(ledger_at(url)) == expected


def test_two_searches_for_the_same_may_share_a_storage(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(ledger_at(None))
    whole, begun = study.run_study, []

    def overtaken(judge: Judge, settings: Settings, seed: int) -> list[tuple[Point, Judged]]:
        begun.append(seed)
        if len(begun) == 1:
            assert run(ledger_at(url)) == expected  # another process, quicker than this one
        return whole(judge, settings, seed)

    monkeypatch.setattr(study, "run_study", overtaken)
    assert run(ledger_at(url)) == expected


def test_a_search_may_begin_while_another_keeps_a_group(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(ledger_at(None))
    whole, begun = optuna.Study.add_trials, []

    def halfway(kept: optuna.Study, trials: Any) -> None:
        begun.append(kept.study_name)
        whole(kept, trials[:2])
        if len(begun) == 1:
            assert run(ledger_at(url)) == expected  # another process
        whole(kept, trials[2:])

    monkeypatch.setattr(optuna.Study, "add_trials", halfway)
    assert run(ledger_at(url)) == expected
    monkeypatch.setattr(study, "run_study", no_study)
    assert run(ledger_at(url)) == expected


def test_keeping_a_group_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    visited = study.run_study(Judge(groups_of(outer())[0]), Settings(trials=4, seed=0), 0)
    optuna.logging.set_verbosity(optuna.logging.INFO)  # as a process begins
    try:
        ledger_at(None).keep(0, outer(), visited)
        assert caplog.records == []
    finally:
        optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_labels_do_not_disturb_each_other(url: str) -> None:
    one = ledger_at(url)
    run(one)
    other = Ledger(one.storage, f"{LABEL}:of another", "ba9876543210")
    other.check()
    Ledger(one.storage, LABEL, CONTENT).check()
    assert other.finished(0, outer()) is None
    with pytest.raises(SpecError, match=CONTENT):
        Ledger(one.storage, LABEL, "ba9876543210").check()


@pytest.mark.parametrize("kept_frac", [0.2, 0.5, 0.9, 0.99])
def test_a_journal_torn_by_a_crash_can_be_resumed(tmp_path: Path, kept_frac: float) -> None:
    path = tmp_path / "study.log"
    expected = run(ledger_at(str(path)))
    whole = path.read_bytes()
    cut = int(kept_frac * len(whole))
    while whole[cut - 1 : cut] == b"\n":
        cut -= 1
    path.write_bytes(whole[:cut])
    assert run(ledger_at(str(path))) == expected
    assert run(ledger_at(str(path))) == expected


def test_a_search_closes_the_database_that_it_opened(tmp_path: Path, empty_database: bytes, opened: list[Any]) -> None:
    (tmp_path / "study.db").write_bytes(empty_database)
    answer_of(storage=f"sqlite:///{tmp_path / 'study.db'}")
    (storage,) = opened
    assert storage.engine.pool.checkedin() + storage.engine.pool.checkedout() == 0


UNREADABLE = {
    "folder": ".",
    "no_folder": "absent/study.log",
    "lines_of_text": "notes.txt",
    "no_database": "sqlite:///notes.txt",
    "no_such_driver": "nosql://somewhere",
    "no_server": "postgresql+psycopg://nobody@127.0.0.1:1/nothing",
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_storage_that_cannot_be_opened_is_bad_input(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("my notes\nare not a study\n")
    with pytest.raises(SpecError) as caught:
        open_storage(UNREADABLE[case])
    assert caught.value.faults[0].path == "--storage"
    assert UNREADABLE[case] in str(caught.value)
    assert Path("notes.txt").read_text() == "my notes\nare not a study\n"


def test_a_file_of_one_line_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(SpecError):
        run(ledger_at(str(path)))
    assert path.read_text() == "my notes\n"


def test_no_time_still_gives_an_answer() -> None:
    answer = answer_of(timeout_s=1e-9, trials=6)
    ruled = search(narrow(), Request(engine="exact", top=5))
    assert answer.status == "timeout"
    assert answer.results
    assert answer.results[0].step_time_s >= ruled.results[0].step_time_s


def test_a_deadline_stops_between_groups_and_a_later_run_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "study.log")
    part = run(ledger_at(path), deadline_s=0.0)
    assert (part.stopped, part.groups, part.trials) == ("timeout", 3, TRIALS // 3)
    whole = run(ledger_at(path))
    assert whole == run(ledger_at(None))
    assert part.step_s.items() <= whole.step_s.items()


def test_an_interrupt_keeps_the_groups_that_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, begun, complete = study.run_study, [], run(ledger_at(None))

    def interrupted(judge: Judge, settings: Settings, seed: int) -> list[tuple[Point, Judged]]:
        begun.append(seed)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return whole(judge, settings, seed)

    monkeypatch.setattr(study, "run_study", interrupted)
    found = run(ledger_at(None))
    assert (found.stopped, found.trials) == ("interrupted", TRIALS // 3)
    assert found.simulated
    assert found.step_s.items() <= complete.step_s.items()


def larger_batch(name: str, gbs: int) -> Space:
    """A little space with so many microbatches that what merged passes hide counts for more than fill and drain."""
    space = little_spaces()[name]
    return replace(space, job=replace(space.job, gbs=gbs))


BOUND_SPACES: dict[str, Callable[[], Space]] = {
    "dense": lambda: with_values(little_spaces()["dense"], tp=(4,), pp=(4,), vpp=(2,), mbs=(1,), sp=(True,)),
    "one_chunk": lambda: with_values(little_spaces()["dense"], tp=(8,), pp=(8,), vpp=(1,), mbs=(2,), sp=(True,)),
    "sparse": lambda: with_values(little_spaces()["sparse"], tp=(1,), pp=(4,), vpp=(4,), ep=(8,), mbs=(1,)),
    "pair": lambda: with_values(
        little_spaces()["sparse"], tp=(2,), pp=(4,), vpp=(2,), ep=(8,), mbs=(1,), overlap=("pair",)
    ),
    "mtp": lambda: with_values(little_spaces()["mtp"], tp=(2,), pp=(4,), vpp=(2,), ep=(32,), dispatch=("hier",)),
    "mtp_pair": lambda: with_values(
        larger_batch("mtp", 1024), tp=(2,), pp=(2,), vpp=(2,), ep=(32,), dispatch=("hier",), overlap=("pair",)
    ),
    "no_recompute": lambda: with_values(
        little_spaces()["tight"], tp=(4,), pp=(2,), vpp=(2,), ep=(8,), recompute=("none", "fit", "full")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BOUND_SPACES)
@pytest.mark.slow
def test_no_cut_of_the_layers_is_faster_than_the_free_bound(case: str) -> None:
    """One shape at a time, so that the smallest bound is that of the plans looked at."""
    space = BOUND_SPACES[case]()
    bound = free_bound_s(search_exact(space, top=1))
    judge = Judge(outer_of(space, 1))
    steps = [judged.step_s for point in some_points(judge.outer, 120) if (judged := judge(point)).broken_rules == 0]
    assert len(steps) > 20
    assert 0.0 < bound <= min(steps) * (1 + 1e-12)
    assert bound > 0.5 * min(steps)  # and it says something


def test_the_free_bound_is_the_smallest_over_the_legal_plans() -> None:
    space = little_spaces()["sparse"]
    parts = [with_values(space, tp=(tp,), mbs=(mbs,)) for tp in (1, 2) for mbs in (1, 2)]
    bounds = [free_bound_s(search_exact(part, top=1)) for part in parts]
    assert free_bound_s(search_exact(space, top=1)) == pytest.approx(min(bounds), rel=1e-12)


def plans_of(found: Findings) -> set[Plan]:
    """Plans that a study found to be feasible."""
    return set(found.step_s)


def test_every_plan_found_is_a_point_of_the_space() -> None:
    every = {outer().plan(point) for point in outer().points()}
    assert plans_of(run(ledger_at(None))) <= every

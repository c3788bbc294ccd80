"""From rows to runs: each with its model, job, machine and plan, or with the reason why it is not read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from autodeploy.catalog.lookup import load
from autodeploy.cost.compute import format_of
from autodeploy.errors import Fault, SpecError
from autodeploy.fidelity.machines import cluster_of, profile_of
from autodeploy.fidelity.measured import peak_memory_bytes, step_seconds
from autodeploy.fidelity.plans import job_of, plan_of
from autodeploy.fidelity.rows import Row, Unread, is_complete, read_rows
from autodeploy.fidelity.shapes import model_of
from autodeploy.fidelity.stacks import Stack, stack_of
from autodeploy.formats.short import ORDER, short_form
from autodeploy.search.enumerate import broken_rules, check_space
from autodeploy.spec.plan import Dispatch, Plan
from autodeploy.spec.space import PlanValues, Space
from autodeploy.spec.target import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A published run, ready to be predicted."""

    row: Row
    stack: Stack
    space: Space
    plan: Plan
    step_s: float | None
    """Measured; None where the row holds only memory, or ran out of it."""
    fits: bool | None
    """None where the source does not say."""
    peak_bytes: float | None

    @property
    def kind(self) -> str:
        """`dense` or `moe`."""
        return "moe" if self.space.model.moe else "dense"

    @property
    def plan_text(self) -> str:
        """The plan in short form, every degree written out."""
        return short_form(self.plan, ORDER)

    @property
    def complete(self) -> bool:
        """The source states the whole configuration."""
        return is_complete(self.row.notes)


def read_runs(path: Path) -> tuple[list[Run], list[Unread]]:
    """All runs of a file, and the lines that are none, each with its reason."""
    rows, unread = read_rows(path)
    runs: list[Run] = []
    for row in rows:
        try:
            runs.append(run_of(row))
        except SpecError as error:
            reason = "; ".join(" ".join(part for part in (f.path, f.problem) if part) for f in error.faults)
            unread.append(
                Unread(id=row.id, source=row.source, reason=reason, use=row.use, complete=is_complete(row.notes))
            )
    return runs, unread


def run_of(row: Row) -> Run:
    """One row as a run. Raises `SpecError` with what keeps it from being one."""
    stack = stack_of(row)
    model = model_of(row, stack.vocab)
    job = job_of(row, stack, model)
    plan = plan_of(row, stack, model)
    cluster = cluster_of(row, stack)
    target = replace(load(Target, stack.target), profile=profile_of(row, stack))
    space = Space(
        name=row.id, model=model, cluster=cluster, target=target, devices=row.devices or 1, job=job,
        plan=PlanValues(tp=(plan.tp,), pp=(plan.pp,)),
        inputs={"model": model.name, "cluster": cluster.name, "target": target.name},
    )  # fmt: skip
    check_space(space)
    format_of(cluster.device, job.precision)
    plan = _legal(space, plan)
    step = step_seconds(row, job, model, cluster.device, stack, plan.recompute.startswith("full"))
    fits = None if row.oom is None and step is None else not row.oom
    return Run(
        row=row, stack=stack, space=space, plan=plan, step_s=step, fits=fits, peak_bytes=peak_memory_bytes(row, stack)
    )


def _legal(space: Space, plan: Plan) -> Plan:
    """The plan, if the arithmetic allows it; within one node there is no hierarchy, and nobody to send to with ep 1."""
    within = plan.etp * plan.ep <= space.cluster.inner.size
    if plan.ep == 1 or (within and plan.dispatch is Dispatch.HIER):
        plan = replace(plan, dispatch=Dispatch.FLAT)
    broken = broken_rules(space, plan)
    if broken:
        raise SpecError(*[Fault(path="", problem=f"breaks {rule}") for rule in broken])
    return plan

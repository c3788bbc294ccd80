"""What the tests of the rules share: questions, plans over given devices, and the rules that a plan breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autodeploy.balance.layouts import candidates
from autodeploy.catalog.lookup import load
from autodeploy.legality.rules import RULES, Question, allowed_layouts
from autodeploy.spec.model import GQA, Model
from autodeploy.spec.placement import placement_of
from autodeploy.spec.plan import Plan
from autodeploy.spec.target import Target
from tests.builders import cluster_of, job_of, model_of, plan_of


def question(
    model: Model | str, devices: int = 64, cluster: str = "h100-80g", seq_len: int = 4096, **job: Any
) -> Question:
    """A question about a model of the catalog, or a made one."""
    known = model_of(model) if isinstance(model, str) else model
    return Question(model=known, job=job_of(seq_len, **job), cluster=cluster_of(cluster), devices=devices)


def with_heads(heads: int, kv_heads: int) -> Model:
    """A small dense model with so many heads."""
    return replace(model_of("llama-3.1-8b"), attention=GQA(heads=heads, kv_heads=kv_heads, head_dim=128))


def spread_over(devices: int, **given: Any) -> Plan:
    """A plan whose data parallelism takes all devices that the other degrees leave."""
    share = given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)
    return plan_of(**{"dp": max(devices // share, 1), **given})


def broken(target: str, q: Question, plan: Plan) -> list[str]:
    """Ids of the target's rules that a plan breaks, those about layouts too."""
    found = candidates(q.model, q.job, plan.pp, plan.vpp, plan.layout, placement=placement_of(plan.schedule))
    out = []
    for rule in (RULES[id] for id in load(Target, target).rules):
        held = bool(found) if rule.id == "L01" else rule.holds is None or bool(rule.holds(q, plan))
        kept = allowed_layouts([rule], q, plan, found)
        out += [rule.id] if not held or (found and not kept) else []
    return out


def accepted(rule: str, values: range, q: Question, **given: Any) -> list[int]:
    """Of some tensor-parallel degrees, those that one rule accepts."""
    holds = RULES[rule].holds
    assert holds is not None
    return [tp for tp in values if holds(q, plan_of(tp=tp, **given))]

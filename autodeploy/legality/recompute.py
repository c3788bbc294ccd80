"""What may be rebuilt, and when."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autodeploy.legality.experts import pair_can_run
from autodeploy.legality.question import Question
from autodeploy.numeric import Num
from autodeploy.spec.model import MLA
from autodeploy.spec.plan import Overlap, PlanLike, PlanTable

MEGATRON_MODULES = frozenset({"layernorm", "moe_act", "mla_up_proj", "shared_experts", "mlp", "moe", "core_attn"})
"""Of our modules, those that `--recompute-modules` takes."""
MINDSPEED_MODULES = frozenset({"layernorm", "mlp_act", "moe_act", "mla_up_proj"})
"""Those with a switch of their own: `--recompute-norm`, `--recompute-activation-function`, `--mla-up-proj-..`."""


def by_policy(p: PlanLike, passes: Callable[[str], bool]) -> Num:
    """A test of the recompute policy, asked once per word."""
    if isinstance(p, PlanTable):
        return np.array([passes(word) for word in p.words["recompute"]], dtype=bool)[p.recompute]
    return passes(p.recompute)


def modules(policy: str) -> frozenset[str]:
    """Modules that a policy names; `none` and `fit` name none, `full` itself, `swap:PART` none."""
    words = {word.split(":")[0] for word in policy.split("+")}
    return frozenset(words) - {"none", "fit", "swap", "solve"}


def v108(q: Question, p: PlanLike) -> Num:
    rebuilds_exchange = by_policy(p, lambda policy: bool(modules(policy) & {"full", "moe"}))
    refused = (p.overlap == Overlap.PAIR) & ((q.mtp > 1) | rebuilds_exchange)
    return pair_can_run(q, p) & (refused == 0)


def v120(q: Question, p: PlanLike) -> Num:
    del q
    return by_policy(p, lambda policy: "full" not in modules(policy) or modules(policy) == {"full"})


def t08(q: Question, p: PlanLike) -> Num:
    del q
    return by_policy(p, lambda policy: "full:" not in policy and not policy.startswith("solve"))


def t11(q: Question, p: PlanLike) -> Num:
    del q
    return by_policy(p, lambda policy: "swap:" not in policy)


def t12(q: Question, p: PlanLike) -> Num:
    del q
    return by_policy(p, lambda policy: "swap:" not in policy.replace("swap:attention", ""))


def v121(q: Question, p: PlanLike) -> Num:
    present = set(MEGATRON_MODULES)
    present -= {"moe_act"} if q.model.moe is None else set()
    present -= set() if isinstance(q.model.attention, MLA) else {"mla_up_proj"}
    return by_policy(p, lambda policy: policy == "full" or modules(policy) <= present)


def v134(q: Question, p: PlanLike) -> Num:
    del q
    return by_policy(p, lambda policy: policy == "full" or modules(policy) <= MINDSPEED_MODULES)


def v135(q: Question, p: PlanLike) -> Num:
    asked = by_policy(p, lambda policy: "mla_up_proj" in modules(policy))
    can = ((p.tp == 1) | (p.sp == 1)) & isinstance(q.model.attention, MLA)
    return can | (asked == 0)

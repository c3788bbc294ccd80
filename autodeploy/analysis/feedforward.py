"""Ops of the feed-forward block: dense, or router, dispatch, routed and shared experts, combine.

Rows and shapes: model.md 4.2, 6.4, 7.2, 7.4.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from autodeploy.analysis.attention import bias, gather, kept_tokens, sandwich, scatter
from autodeploy.analysis.ops import (
    Engine,
    Group,
    Module,
    Op,
    Row,
    Shard,
    Tokens,
    Transfer,
    gathering,
    matmul,
    vector,
)  # fmt: skip
from autodeploy.analysis.vectors import BF16, activation, norm, residual
from autodeploy.numeric import Num
from autodeploy.spec.model import Model, MoE
from autodeploy.spec.target import Profile

ROW_MAP_BYTES = 8.0
"""Row-id map of the permutation, per token and expert (4..8; the published list takes 8)."""
ROUTER_KERNELS, PERMUTE_KERNELS, UNPERMUTE_KERNELS = 12, 8, 4
"""Soft-max, top-k, masks, balancing loss and bias; counts, sort, copies and the exchange of sizes; copy and sum
(Megatron-Core moe/router.py, moe/token_dispatcher.py)."""
EAGER_PERMUTE = 2.0
"""Index, gather, sort back and weigh as kernels of their own: every copy is read and written once more."""


def dense_ops(model: Model, t: Tokens, profile: Profile) -> list[Op]:
    """Norm, the two (gated: three) matrices, residual."""
    h, width = model.hidden, model.ffn_width / t.tp
    up = (2.0 if model.gated else 1.0) * width
    normed = Row(name="norm-2 output", bytes=BF16 * h * kept_tokens(profile, t), module=Module.LAYERNORM, taken="only")
    fc1 = Row(name="fc1 output", bytes=BF16 * t.whole * up, module=Module.MLP, grad_live=True)
    act = Row(name="activation output", bytes=BF16 * t.whole * width, module=Module.MLP_ACT, taken="only")
    traffic = BF16 * h * t.whole
    biased = 1.0 if model.linear_bias else 0.0
    first = matmul(
        "fc1", t.whole, up, h, module=Module.MLP, rows=(fc1,), bias=biased * up, transfers=(gather(traffic, t),)
    )
    return [
        norm("norm 2", model, profile, t.part, rows=(normed,), module=Module.LAYERNORM),
        gathering(first, kept_tokens(profile, t)),
        activation("activation", model, profile, t.whole, width, Module.MLP_ACT, (act,)),
        matmul("fc2", t.whole, h, width, module=Module.MLP, transfers=(scatter(traffic),)),
        *bias("fc2 bias", t, biased * h),
        *sandwich("norm after mlp", model, profile, t),
        residual("residual 2", model, profile, t.part),
    ]


def moe_ops(model: Model, t: Tokens, profile: Profile) -> list[Op]:
    """Norm, router, dispatch, grouped expert products, combine, shared experts, residual."""
    moe = model.moe
    assert moe is not None
    h = model.hidden
    own = Row(name="moe input", bytes=BF16 * h * t.part, module=Module.LAYERNORM)
    rest = Row(name="moe input, gathered part", bytes=BF16 * h * (t.whole - t.part), module=Module.MOE)
    return [
        norm("norm 2", model, profile, t.part, rows=(own, rest), module=Module.LAYERNORM),
        _router(h, moe, t),
        *_routed(model, moe, t, profile),
        *_shared(model, moe, t, profile),
        *sandwich("norm after moe", model, profile, t),
        residual("residual 2", model, profile, t.part),
    ]


def _router(h: int, moe: MoE, t: Tokens) -> Op:
    rows = (
        Row(name="router probabilities", bytes=BF16 * t.part * moe.experts, module=Module.MOE),
        Row(name="row-id map", bytes=ROW_MAP_BYTES * t.part * moe.experts, module=Module.MOE),
    )
    product = matmul("router", t.part, moe.experts, h, shard=Shard.REPLICATED, module=Module.MOE, rows=rows)
    return replace(product, counted=False, narrow=False, kernels=ROUTER_KERNELS)


def _routed(model: Model, moe: MoE, t: Tokens, profile: Profile) -> list[Op]:
    """Every token's k copies go to their experts and come back. Row counts are those of the busiest rank."""
    h, k = model.hidden, moe.top_k
    received = t.part * t.etp * k * t.imbalance
    width = moe.expert_width / t.etp
    up = (2.0 if model.gated else 1.0) * width
    local = moe.experts / t.ep
    eager = "permute" not in profile.fused
    moved = (EAGER_PERMUTE if eager else 1.0) * BF16 * 2.0 * (1.0 + k) * h * t.part * t.imbalance
    permuted = Row(name="permuted tokens", bytes=BF16 * received * h, module=Module.MOE, grad_live=True, taken="only")
    fc1 = Row(name="expert fc1 output", bytes=BF16 * received * up, module=Module.MOE, grad_live=True)
    act = Row(name="expert activation output", bytes=BF16 * received * width, module=Module.MOE_ACT, taken="only")
    # the expert product ends where ranks of one expert add up: etp copies shrink to one
    combined = Row(name="combine input", bytes=BF16 * received / t.etp * h, module=Module.MOE)
    permute = vector(
        "permute",
        moved,
        moved,
        module=Module.MOE,
        transfers=_all_to_all(h, t, profile.dispatch_bytes, BF16),
        rows=(permuted,),
        kernels=PERMUTE_KERNELS,
    )
    unpermute = vector(
        "unpermute", moved, moved, module=Module.MOE, kernels=UNPERMUTE_KERNELS,
        transfers=_all_to_all(h, t, BF16, profile.dispatch_bytes),
    )  # fmt: skip
    grouped = partial(
        _grouped, experts=local, transfers=(_expert_tp(h, received),), apart="grouped" not in profile.fused
    )
    return [
        replace(permute, counts_rows=True),
        grouped("expert fc1", (received, up, h), (fc1,)),
        activation("expert activation", model, profile, received, width, Module.MOE_ACT, (act,)),
        grouped("expert fc2", (received, h, width), (combined,) if profile.combine_saved else ()),
        unpermute,
    ]  # fmt: skip


def _all_to_all(h: int, t: Tokens, forward: float, backward: float) -> tuple[Transfer, ...]:
    """Dispatch or combine: of one copy of the rank's tokens, once forward and once backward, at so many bytes an
    element each way."""
    tokens = h * t.part
    if forward == backward:
        return (Transfer(group=Group.EP, bytes=forward * tokens, forward=1.0, backward=1.0),)
    return (
        Transfer(group=Group.EP, bytes=forward * tokens, forward=1.0),
        Transfer(group=Group.EP, bytes=backward * tokens, backward=1.0),
    )


def _expert_tp(h: int, received: Num) -> Transfer:
    """All-gather before, or reduce-scatter after, experts that are cut over etp ranks."""
    return Transfer(group=Group.ETP, bytes=BF16 * h * received, forward=1.0, backward=1.0)


def _grouped(
    name: str,
    size: tuple[Num, Num, Num],
    rows: tuple[Row, ...],
    *,
    experts: Num,
    transfers: tuple[Transfer, ...],
    apart: bool,
) -> Op:
    """One product per local expert, of equal shares of the received rows; `size` is m, n, k of all together."""
    m, n, k = size
    return Op(
        name=name, engine=Engine.EXPERTS, module=Module.MOE, m=m, n=n, k=k, input_tokens=m, experts=experts,
        flop=2.0 * m * n * k, narrow=True, params=1.0 * experts * n * k, shard=Shard.EXPERT, rows=rows,
        transfers=transfers, apart=apart,
    )  # fmt: skip


def _shared(model: Model, moe: MoE, t: Tokens, profile: Profile) -> list[Op]:
    if not moe.shared_width:
        return []
    h, width = model.hidden, moe.shared_width / t.tp
    up = (2.0 if model.gated else 1.0) * width
    traffic = BF16 * h * t.whole
    module = Module.SHARED_EXPERTS
    fc1 = Row(name="shared fc1 output", bytes=BF16 * t.whole * up, module=module)
    act = Row(name="shared activation output", bytes=BF16 * t.whole * width, module=module, taken="only")
    first = matmul("shared fc1", t.whole, up, h, module=module, rows=(fc1,), transfers=(gather(traffic, t),))
    return [
        gathering(first, kept_tokens(profile, t)),
        activation("shared activation", model, profile, t.whole, width, module, (act,)),
        matmul("shared fc2", t.whole, h, width, module=module, transfers=(scatter(traffic),)),
    ]

"""From a row to the model that was trained: its sizes from the row, its kind from the family that its name tells."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from autodeploy.analysis.readings import model_size
from autodeploy.errors import Fault, SpecError
from autodeploy.fidelity.own import own_table
from autodeploy.fidelity.rows import Row
from autodeploy.spec.model import GQA, MLA, Model, MoE
from autodeploy.units import GIGA

NEEDED = ("layers", "hidden", "heads", "vocab", "seq_len")
LONGEST = 10_000_000
"""Tables of runs say nothing of the longest sequence."""
IDLE = re.compile(r"noop-layers=(\d+(?:,\d+)*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Latent:
    """Sizes of latent attention that rows leave out."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """What the name of a model tells beyond its sizes. The first family whose pattern fits counts."""

    match: str
    """Regular expression, searched in the model's name without regard to case."""
    gated: bool | None = None
    """None: the one whose parameter count is nearer to the stated one."""
    norm: str = "rmsnorm"
    learned_positions: bool = False
    alibi: bool = False
    linear_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    """The head multiplies with the embedding's matrix."""
    norms_per_layer: int = 2
    window: int = 0
    window_frac: float = 1.0
    node_limit: int = 0
    every: int = 1
    mtp_depth: int = 0
    latent: Latent | None = None
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Families:
    """The file of families."""

    family: tuple[Family, ...]


def families() -> tuple[Family, ...]:
    """All families, in the order in which they are tried."""
    return own_table(Families, "families").family


def family_of(name: str) -> Family:
    """The family of a model's name."""
    return next(family for family in families() if re.search(family.match, name, re.IGNORECASE))


def model_of(row: Row, vocab: int = 0) -> Model:
    """The model of a row; `vocab` stands in where the row has none. Raises `SpecError` naming all that is missing."""
    row = replace(row, vocab=row.vocab or vocab or None)
    family = family_of(row.model)
    _check(row, family)
    plain = _model(row, family, bool(family.gated))
    if family.gated is not None or row.params_b is None:
        return plain
    options = (plain, replace(plain, gated=True))
    return min(options, key=lambda model: abs(model_size(model).total / GIGA - (row.params_b or 0.0)))


def idle_layers(row: Row) -> tuple[int, ...]:
    """Numbers of the layers that do nothing, which a row's layers include (MindSpeed's --noop-layers)."""
    found = IDLE.search(f"{row.flags}; {row.notes}")
    return tuple(int(number) for number in found[1].split(",")) if found else ()


def _check(row: Row, family: Family) -> None:
    missing = [name for name in NEEDED if getattr(row, name) is None]
    if not (row.ffn_hidden or row.moe_ffn_hidden):
        missing.append("ffn_hidden")
    faults = [Fault(path="model", problem=f"sizes are missing: {' '.join(missing)}")] if missing else []
    if row.mla and family.latent is None:
        faults.append(Fault(path="mla", problem=f"the ranks of latent attention of {row.model!r} are not known"))
    if row.heads and row.kv_heads and row.heads % row.kv_heads:
        faults.append(Fault(path="kv_heads", problem=f"{row.kv_heads} does not divide {row.heads} heads"))
    if row.layers and len(idle_layers(row)) >= row.layers:
        faults.append(Fault(path="noop-layers", problem=f"leave none of {row.layers} layers"))
    if row.experts and not (row.topk and row.topk <= row.experts):
        faults.append(Fault(path="topk", problem=f"{row.topk} of {row.experts} experts"))
    if faults:
        raise SpecError(*faults)


def _model(row: Row, family: Family, gated: bool) -> Model:
    assert row.layers
    assert row.hidden
    assert row.vocab
    assert row.seq_len
    width = row.ffn_hidden or row.moe_ffn_hidden
    assert width
    return Model(
        name=row.model,
        title=row.model,
        hidden=row.hidden,
        layers=row.layers - len(idle_layers(row)),
        vocab=row.vocab,
        attention=_attention(row, family),
        ffn_width=width,
        gated=gated,
        moe=_moe(row, family),
        mtp_depth=family.mtp_depth,
        norms_per_layer=4 if family.norms_per_layer == 4 else 2,
        norm="layernorm" if family.norm == "layernorm" else "rmsnorm",
        linear_bias=family.linear_bias,
        tied_embeddings=family.tied,
        learned_positions=row.seq_len if family.learned_positions else 0,
        alibi=family.alibi,
        window=family.window,
        window_frac=family.window_frac,
        max_seq_len=max(LONGEST, row.seq_len),
    )


def _attention(row: Row, family: Family) -> GQA | MLA:
    assert row.heads
    assert row.hidden
    if row.mla and family.latent:
        sizes: dict[str, Any] = {name: getattr(family.latent, name) for name in Latent.__slots__}
        return MLA(heads=row.heads, **sizes)
    return GQA(
        heads=row.heads,
        kv_heads=row.kv_heads or row.heads,
        head_dim=row.head_dim or row.hidden // row.heads,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
    )


def _moe(row: Row, family: Family) -> MoE | None:
    if not row.experts or row.experts < 2 or not row.topk:
        return None
    width = row.moe_ffn_hidden or row.ffn_hidden
    assert width
    idle = idle_layers(row)
    layers = (row.layers or 1) - len(idle)
    dense = (row.dense_layers or 0) - sum(number < (row.dense_layers or 0) for number in idle)
    return MoE(
        experts=row.experts,
        top_k=row.topk,
        expert_width=width,
        shared_width=(row.shared_experts or 0) * width,
        first_dense=min(dense, layers - 1),
        every=family.every,
        node_limit=family.node_limit,
    )

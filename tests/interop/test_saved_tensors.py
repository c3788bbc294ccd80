"""What layers of `transformers` (5.24.0) keep for the backward pass under torch, row by row against the inventory.

Counted bytes of a row = bytes of our row + the differences of its places, exactly. A place is a line of code that had
a storage saved; its `more` is what that code keeps beyond the row, or, in a row that we have not, all of it. Every
storage has a place and every place a storage. In plain words: docs/memory.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest

from autodeploy.analysis.readings import PLAIN
from autodeploy.spec.model import Kind
from tests.builders import job_of, ops_of, plan_of
from tests.interop.conftest import skip_without
from tests.interop.hf_layers import ONE, OTHER, Sizes, model_like, storages
from tests.interop.places import Formula, Place, bytes_by_place, bytes_by_row, hidden, names

pytestmark = pytest.mark.interop


def norm(module: str, row: str, ours: str, elements: Formula, width: Formula) -> tuple[Place, ...]:
    """RMSNorm line by line: its input as the fp32 copy (4 bytes for 2) and the product before the weight in bf16, both
    in our rows; one fp32 scale a vector."""
    both = f"{row}+{ours} line by line"
    return (
        Place(row=both, module=module, line="variance = hidden_states.pow(2)"),
        Place(
            row=f"{module}: scales", module=module, line="* torch.rsqrt(variance",
            more=lambda z: 4 * elements(z) // width(z), tail=lambda _: (1,),
        ),
        Place(row=both, module=module, line="self.weight * hidden_states"),
    )  # fmt: skip


def swiglu(module: str, fc1: str, name: str) -> tuple[Place, ...]:
    """silu(gate) is a factor of the product that follows, and is kept beside gate and up."""
    return (
        Place(row=f"{fc1}+{name}, gate", module=f"{module}.act_fn", line="functional.silu(input)"),
        Place(row=f"{fc1}+{name}, gate", module=module, line="self.act_fn(self.gate_proj(x)) *"),
        Place(row=f"{name} output", module=f"{module}.down_proj", line="self.down_proj("),
    )


SDPA = "torch.nn.functional.scaled_dot_product_attention("
SCORES = "attn_weights = torch.matmul(query"
VALUES = "attn_output = torch.matmul(attn_weights"
NORM_1 = norm("input_layernorm", "layer input", "norm 1", hidden, lambda z: z.h)
NORM_2 = norm("post_attention_layernorm", "residual after attention", "norm 2", hidden, lambda z: z.h)
OUT = Place(row="attention output", module="self_attn.o_proj", line="self.o_proj(attn_output)")
SOFTMAX = (
    # soft-max runs in fp32 and keeps its result there; the copy in bf16 is the factor of the values
    Place(row="scores", module="self_attn", line="softmax(attn_weights, dim=-1, dtype=torch.float32)",
          more=lambda z: 4 * z.T * z.s * z.a),
    Place(row="scores", module="self_attn", line=VALUES, tail=lambda z: (z.s,)),
)  # fmt: skip
STATISTICS = Place(row="softmax statistics", module="self_attn", line=SDPA, dtype="float32")


def turns(line: str, width: Formula) -> Place:
    """cos and sin, of one sequence and of no head; the layers of a model share them."""
    return Place(row="cos and sin", module="self_attn", line=line, more=lambda z: 2 * 2 * z.s * width(z))


GQA_INPUT = (
    *NORM_1,
    Place(row="norm-1 output", module="self_attn.q_proj", line="self.q_proj(hidden_states)"),
    turns("q_embed = (q * cos)", lambda z: z.d),
)
GQA_EAGER = (
    *GQA_INPUT,
    # keys are repeated for every query head (repeat_kv), and saved so
    Place(row="q, k, v", module="self_attn", line=SCORES, more=lambda z: 2 * z.T * (z.a - z.g) * z.d),
    *SOFTMAX,
    # and values
    Place(row="q, k, v", module="self_attn", line=VALUES, tail=lambda z: (z.d,),
          more=lambda z: 2 * z.T * (z.a - z.g) * z.d),
    OUT,
    *NORM_2,
)  # fmt: skip
GQA_FLASH = (
    *GQA_INPUT,
    OUT,
    STATISTICS,
    Place(row="q, k, v", module="self_attn", line=SDPA, dtype="bfloat16"),
    *NORM_2,
)
QK_NORM = (
    *norm("self_attn.q_norm", "q, k before their norm", "qk norm", lambda z: z.T * z.a * z.d, lambda z: z.d),
    *norm("self_attn.k_norm", "q, k before their norm", "qk norm", lambda z: z.T * z.g * z.d, lambda z: z.d),
)
MLA_INPUT = (
    *NORM_1,
    Place(row="norm-1 output", module="self_attn.q_a_proj", line="self.q_a_proj(hidden_states)"),
    *norm("self_attn.q_a_layernorm", "q latent", "q latent norm", lambda z: z.T * z.r_q, lambda z: z.r_q),
    Place(row="q latent normed", module="self_attn.q_b_proj", line="self.q_b_proj("),
    *norm("self_attn.kv_a_layernorm", "kv latent", "kv latent norm", lambda z: z.T * z.r_kv, lambda z: z.r_kv),
    Place(row="kv latent normed", module="self_attn.kv_b_proj", line="self.kv_b_proj(kv_nope)"),
    turns("q_embed = torch.cat([q1 * cos", lambda z: z.d_r),
)
MLA_EAGER = (
    *MLA_INPUT,
    Place(row="q", module="self_attn", line=SCORES, tail=lambda z: (z.d_qk,)),
    Place(row="k", module="self_attn", line=SCORES, tail=lambda z: (z.s,)),
    *SOFTMAX,
    # v is half of the up-projection (torch.split(kv_nope, ...)); torch.matmul copies it out, but for a batch of one it
    # takes the view, which holds the other half, the keys
    Place(row="v", module="self_attn", line=VALUES, tail=lambda z: (z.d_v,),
          more=lambda z: 2 * z.T * z.a * z.d_n * (z.b == 1)),
    OUT,
    *NORM_2,
)  # fmt: skip
MLA_MATH = (
    # heads of two sizes have no fused kernel on the CPU: sdpa multiplies in fp32, and keeps all in 4 bytes for 2
    *MLA_INPUT,
    Place(row="q", module="self_attn", line=SDPA, tail=lambda z: (z.d_qk,), more=lambda z: 2 * z.T * z.a * z.d_qk),
    Place(row="k", module="self_attn", line=SDPA, tail=lambda z: (z.d_qk, z.s), more=lambda z: 2 * z.T * z.a * z.d_qk),
    Place(row="scores", module="self_attn", line=SDPA, tail=lambda z: (z.s, z.s), more=lambda z: 2 * z.T * z.s * z.a),
    Place(row="v", module="self_attn", line=SDPA, tail=lambda z: (z.d_v,), more=lambda z: 2 * z.T * z.a * z.d_v),
    OUT,
    *NORM_2,
)
MLA_FLASH = (
    *MLA_INPUT,
    OUT,
    STATISTICS,
    # v is a view of the up-projection (torch.split(kv_nope, ...)) and holds its other half, the keys, too; the output
    # is laid out as the queries, head by head after their torch.cat, and kept so beside its copy by tokens
    # (attn_output.transpose(1, 2).contiguous()), which the output projection keeps
    Place(row="q+k+v", module="self_attn", line=SDPA, dtype="bfloat16",
          more=lambda z: 2 * z.T * z.a * z.d_n + 2 * z.T * z.a * z.d_v),
    *NORM_2,
)  # fmt: skip
DENSE = (
    Place(row="norm-2 output", module="mlp.gate_proj", line="self.gate_proj(x)"),
    *swiglu("mlp", "fc1 output", "activation"),
)
EXPERTS = (
    # positions of the copies as int64: token of each, weight of each, and the way back; ours: tokens x experts
    Place(row="row-id map", module="mlp.experts", line="hidden_states[perm // num_top_k]",
          more=lambda z: 8 * z.T * z.k - 8 * z.T * z.E),
    Place(row="row-id map", module="mlp.experts", line="sample_weights[perm]", more=lambda z: 8 * z.T * z.k),
    Place(row="row-id map", module="mlp.experts", line="weighted_out[inv_perm]", more=lambda z: 8 * z.T * z.k),
    Place(row="ends of the groups", module="mlp.experts", line="grouped_mm(", dtype="int32", more=lambda z: 4 * z.E),
    Place(row="permuted tokens", module="mlp.experts", line="grouped_mm(", tail=lambda z: (z.h,)),
    Place(row="expert fc1 output+expert activation, gate", module="mlp.experts.act_fn", line="functional.silu(input)"),
    # silu(gate), as in the dense layer
    Place(row="expert fc1 output+expert activation, gate", module="mlp.experts", line="self.act_fn(gate) * up"),
    Place(row="expert activation output", module="mlp.experts", line="grouped_mm(", tail=lambda z: (z.f_e,)),
    Place(row="combine input", module="mlp.experts", line="proj_out * sample_weights_g", tail=lambda z: (z.h,)),
)  # fmt: skip
QWEN_ROUTER = (
    Place(row="moe input", module="mlp.gate", line="F.linear(hidden_states, self.weight)"),
    # soft-max in fp32
    Place(row="router probabilities", module="mlp.gate", line="softmax(router_logits, dtype=torch.float",
          more=lambda z: 2 * z.T * z.E),
    Place(row="chosen experts", module="mlp.gate", line="torch.topk(router_probs", more=lambda z: 8 * z.T * z.k),
    # sums in fp32; weights of the copies in bf16
    Place(row="routing weights", module="mlp.gate", line="router_top_value /=", more=lambda z: 4 * z.T * (z.k + 1)),
    Place(row="routing weights", module="mlp.experts", line="proj_out * sample_weights_g", tail=lambda _: (1,),
          more=lambda z: 2 * z.T * z.k),
)  # fmt: skip
DEEPSEEK_ROUTER = (
    Place(row="moe input", module="mlp.shared_experts.gate_proj", line="self.gate_proj(x)"),
    # the router multiplies in fp32
    Place(row="router input in fp32", module="mlp.gate", line="F.linear(hidden_states.type(torch.float32)",
          more=lambda z: 4 * z.T * z.h),
    Place(row="router probabilities", module="mlp.gate", line="scores = router_logits.sigmoid()",
          more=lambda z: 2 * z.T * z.E),
    Place(row="chosen experts", module="mlp.gate", line="scores.gather(1, topk_indices)", dtype="int64",
          more=lambda z: 8 * z.T * z.k),
    Place(row="routing weights", module="mlp.gate", line="topk_weights /= denominator",
          more=lambda z: 4 * z.T * (z.k + 1)),
    Place(row="routing weights", module="mlp.experts", line="proj_out * sample_weights_g", tail=lambda _: (1,),
          more=lambda z: 4 * z.T * z.k),
    *swiglu("mlp.shared_experts", "shared fc1 output", "shared activation"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A layer, the attention that it runs, ours to compare it with, and all places."""

    layer: str
    attention: str
    ours: str
    places: tuple[Place, ...]
    dense: bool = False
    even: bool = False
    """Heads of one size under MLA, for which the CPU has a fused kernel."""


CASES = {
    "llama, eager": Case(layer="llama", attention="eager", ours="unfused", places=(*GQA_EAGER, *DENSE)),
    "llama, flash": Case(layer="llama", attention="sdpa", ours="best", places=(*GQA_FLASH, *DENSE)),
    "qwen3-moe, eager": Case(
        layer="qwen3-moe", attention="eager", ours="unfused",
        places=(*GQA_EAGER, *QK_NORM, *QWEN_ROUTER, *EXPERTS),
    ),
    "qwen3-moe, flash": Case(
        layer="qwen3-moe", attention="sdpa", ours="best", places=(*GQA_FLASH, *QK_NORM, *QWEN_ROUTER, *EXPERTS),
    ),
    "deepseek-v3 dense, eager": Case(
        layer="deepseek-v3", attention="eager", ours="unfused", dense=True, places=(*MLA_EAGER, *DENSE),
    ),
    "deepseek-v3 dense, math": Case(
        layer="deepseek-v3", attention="sdpa", ours="unfused", dense=True, places=(*MLA_MATH, *DENSE),
    ),
    "deepseek-v3 sparse, eager": Case(
        layer="deepseek-v3", attention="eager", ours="unfused", places=(*MLA_EAGER, *DEEPSEEK_ROUTER, *EXPERTS),
    ),
    "deepseek-v3 sparse, flash": Case(
        layer="deepseek-v3", attention="sdpa", ours="best", even=True,
        places=(*MLA_FLASH, *DEEPSEEK_ROUTER, *EXPERTS),
    ),
}  # fmt: skip


def sizes_of(case: Case, z: Sizes) -> Sizes:
    """With the value heads that the case needs."""
    return replace(z, d_v=z.d_qk) if case.even else z


@cache
def counted(name: str, z: Sizes) -> dict[Place | None, int]:
    """Bytes of every place, that of none included."""
    case = CASES[name]
    return bytes_by_place(storages(case.layer, case.attention, z, case.dense), case.places, z)


def ours(case: Case, z: Sizes) -> dict[str, float]:
    """Rows of the inventory that are not empty."""
    profile = replace(PLAIN, attention=case.ours, fused=())
    model = model_like(case.layer, z, case.dense)
    kind = Kind.SPARSE if model.moe else Kind.DENSE
    ops = ops_of(model, plan_of(mbs=z.b), job_of(z.s), profile)[kind]
    return {row.name: row.bytes for op in ops for row in op.rows if row.bytes}


@pytest.fixture(autouse=True)
def transformers_is_installed(request: pytest.FixtureRequest) -> None:
    """As for torch: each test is skipped under its own name."""
    skip_without(request, "transformers")


EVERY = pytest.mark.parametrize("name", CASES)
SIZES = pytest.mark.parametrize("z", [ONE, OTHER], ids=["one size", "another size"])


@EVERY
@SIZES
def test_every_storage_has_a_place_and_every_place_a_storage(name: str, z: Sizes) -> None:
    case = CASES[name]
    z = sizes_of(case, z)
    assert set(counted(name, z)) == set(case.places)


@EVERY
@SIZES
def test_every_row_of_ours_is_kept(name: str, z: Sizes) -> None:
    case = CASES[name]
    kept = {each for place in case.places for each in names(place.row)}
    assert set(ours(case, sizes_of(case, z))) <= kept


@EVERY
@SIZES
def test_rows_are_ours_and_the_differences_exactly(name: str, z: Sizes) -> None:
    case = CASES[name]
    z = sizes_of(case, z)
    seen, expected = bytes_by_row(counted(name, z), ours(case, z), case.places, z)
    assert seen == expected

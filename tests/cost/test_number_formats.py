"""Number formats below 16 bits, adapters beside frozen weights: rates and bytes of their products, what they hold.

Transformer Engine's recipes keep attention, router and head in bf16. NVFP4: 4 bits and one 8-bit scale for 16
elements (NVIDIA Blackwell). Adapters: arXiv 2106.09685, whose table 4 counts those of GPT-3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.analysis.formats import adapted, narrowed
from autodeploy.analysis.inventory import kind_counts
from autodeploy.analysis.ops import Engine, Op, Shard, matmul
from autodeploy.analysis.readings import PLAIN, model_size, params, saved_bytes
from autodeploy.cost.compute import format_of, op_s
from autodeploy.cost.memory import Params, bytes_per_param, resident_terms
from autodeploy.errors import SpecError
from autodeploy.spec.cluster import Device, Rate
from autodeploy.spec.machine import Machine
from autodeploy.spec.model import Kind
from tests.builders import cluster_of, costs_of, job_of, machine_of, model_of, ops_of, plan_of

LINEAR = (Engine.MATMUL, Engine.EXPERTS)
SIZES = st.integers(1, 20000)


def device(times: float = 2.0, **changed: Any) -> Device:
    """An H100 without gaps between kernels and tiles, whose 8-bit products run so many times as fast."""
    base = replace(cluster_of("h100-80g").device, kernel_gap_s=1e-30, tile_overhead_s=1e-30, **changed)
    rate = Rate(peak_flop_per_s=times * base.peak_flop_per_s, max_frac=base.matmul_max_frac)
    return replace(base, fp8=rate, nvfp4=rate)


def seconds(on: Device, op: Op, **job: Any) -> tuple[float, float]:
    return op_s(on, PLAIN, job_of(**job), op)[:2]


@given(m=SIZES, n=SIZES, k=SIZES, times=st.floats(1.0, 8.0))
def test_a_product_that_computes_speeds_up_with_its_rate(m: int, n: int, k: int, times: float) -> None:
    on = device(times, hbm_bytes_per_s=1e30)
    op = matmul("x", 1.0 * m, 1.0 * n, 1.0 * k)
    for wide, narrow in zip(seconds(on, op), seconds(on, op, precision="fp8"), strict=True):
        assert wide / narrow == pytest.approx(times, rel=1e-9)


@pytest.mark.parametrize(("precision", "element"), [("bf16", 2.0), ("fp16", 2.0), ("fp8", 1.0), ("nvfp4", 0.5625)])
@given(m=SIZES, n=SIZES, k=SIZES)
def test_a_product_that_waits_for_memory_moves_narrow_operands(
    precision: str, element: float, m: int, n: int, k: int
) -> None:
    # both operands in the format, the result in bf16, the accumulated gradient read and written in fp32
    on = device(peak_flop_per_s=1e30)
    rate = on.hbm_bytes_per_s * on.hbm_max_frac
    forward, backward = seconds(on, matmul("x", 1.0 * m, 1.0 * n, 1.0 * k), precision=precision)
    assert forward == pytest.approx((element * (m * k + n * k) + 2 * m * n) / rate, rel=1e-9)
    dgrad, wgrad = element * (m * n + n * k) + 2 * m * k, element * (m * k + m * n) + 8 * n * k
    assert backward == pytest.approx((dgrad + wgrad) / rate, rel=1e-9)


def test_four_bits_share_a_scale_among_sixteen() -> None:
    assert format_of(device(), "nvfp4").element_bytes == (16 * 4 + 8) / 8 / 16


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_attention_router_and_head_stay_wide(precision: str) -> None:
    narrow = {op.name for ops in ops_of(model_of("deepseek-v3"), plan_of()).values() for op in ops if op.narrow}
    wide = {op.name for ops in ops_of(model_of("deepseek-v3"), plan_of()).values() for op in ops if not op.narrow}
    assert {"router", "logits", "attention core"} <= wide
    assert {"q down", "q up", "kv down", "kv up", "output projection", "fc1", "fc2", "shared fc1"} <= narrow
    assert {"expert fc1", "expert fc2", "mtp projection"} <= narrow
    for ops in ops_of(model_of("deepseek-v3"), plan_of()).values():
        for op in ops:
            same = seconds(device(), op) == seconds(device(), op, precision=precision)
            assert same is not op.narrow


def casts_of(name: str, kind: Kind, **job: Any) -> tuple[list[Op], list[Op]]:
    """Casts of a layer, and the products that they feed."""
    ops = ops_of(model_of(name), plan_of(), job_of(**job))[kind]
    casts = [op for op in ops if op.name.endswith(" cast")]
    return casts, [op for op in ops if op.narrow]


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
@pytest.mark.parametrize(("name", "kind"), [("deepseek-v3", Kind.SPARSE), ("llama-3.1-70b", Kind.DENSE)])
def test_every_narrow_product_has_its_input_cast(name: str, kind: Kind, precision: str) -> None:
    # read in 16 bits, written in 8: at least; the job's own format alone changes nothing else
    casts, products = casts_of(name, kind, precision=precision)
    assert [cast.name for cast in casts] == [f"{op.name} cast" for op in products]
    for cast, op in zip(casts, products, strict=True):
        assert cast.forward_bytes >= (2.0 + 1.0) * op.m * op.k
        assert cast.backward_bytes >= (2.0 + 1.0) * op.m * op.n
        assert cast.module is op.module  # it is repeated with its product
    for plain in ("bf16", "fp16"):
        assert casts_of(name, kind, precision=plain)[0] == []
        bare = ops_of(model_of(name), plan_of())[kind]
        assert narrowed(PLAIN, job_of(precision=plain), bare) == bare


def test_a_format_costs_no_parameters_rows_or_flop() -> None:
    wide, narrow = (ops_of(model_of("deepseek-v3"), plan_of(tp=2), job_of(precision=p)) for p in ("bf16", "fp8"))
    for kind, ops in wide.items():
        assert params(narrow[kind]) == params(ops)
        assert saved_bytes(narrow[kind]) == saved_bytes(ops)
        assert sum(op.flop for op in narrow[kind]) == sum(op.flop for op in ops)


@pytest.mark.parametrize(
    ("cluster", "precision", "allowed"),
    [("atlas-800t-a2", "fp8", "bf16 fp16"), ("a100-80g", "nvfp4", "bf16 fp16"), ("h100-80g", "nvfp4", "bf16 fp16 fp8")],
)
def test_a_format_that_a_device_lacks_is_refused(cluster: str, precision: str, allowed: str) -> None:
    with pytest.raises(SpecError, match=r"job\.precision") as caught:
        costs_of(model_of("llama-3.1-8b"), plan_of(), job_of(precision=precision), machine_of(cluster))
    (fault,) = caught.value.faults
    assert (fault.path, fault.allowed) == ("job.precision", allowed)
    assert precision in fault.problem


RANKS = st.sampled_from([1, 4, 8, 64])


@pytest.mark.parametrize(("rank", "millions"), [(1, 4.7), (8, 37.7)])
def test_adapters_of_gpt3_are_the_published_ones(rank: int, millions: float) -> None:
    # of two square matrices a layer (queries, values): arXiv 2106.09685 table 4; ours has one such, the output's
    ops = ops_of(model_of("gpt3-175b"), plan_of(), job_of(2048, lora_rank=rank))[Kind.DENSE]
    one = params(op for op in ops if op.name.startswith("output projection adapter"))
    assert 96 * 2 * one / 1e6 == pytest.approx(millions, abs=0.05)


@given(rank=RANKS)
def test_a_dense_layer_trains_two_thin_matrices_beside_each_of_its_own(rank: int) -> None:
    # r (in + out): q, k and v together, output, up and gate together, down
    model = model_of("llama-3.1-70b")
    h, f, queries, keys = 8192, 28672, 64 * 128, 8 * 128
    expected = rank * ((h + queries + 2 * keys) + (queries + h) + (h + 2 * f) + (f + h))
    cost = costs_of(model, plan_of(), job_of(lora_rank=rank))[Kind.DENSE]
    assert cost.dense_params == expected
    assert cost.expert_params == 0.0
    assert cost.frozen_params == params(ops_of(model, plan_of())[Kind.DENSE])


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "gpt3-175b"])
def test_all_of_the_model_is_frozen(name: str) -> None:
    model = model_of(name)
    costs, counts = costs_of(model, plan_of(), job_of(lora_rank=8)), kind_counts(model, mtp=True)
    size = model_size(model)
    frozen = sum(counts[kind] * (cost.frozen_params + cost.frozen_expert_params) for kind, cost in costs.items())
    assert frozen == pytest.approx(size.total + size.mtp, rel=1e-12)
    assert costs[Kind.EMBEDDING].dense_params == costs[Kind.HEAD].dense_params == 0.0


def test_without_adapters_nothing_is_frozen() -> None:
    for cost in costs_of(model_of("deepseek-v3"), plan_of(ep=8)).values():
        assert cost.frozen_params == cost.frozen_expert_params == 0.0
    ops = ops_of(model_of("deepseek-v3"), plan_of())[Kind.SPARSE]
    assert adapted(job_of(), ops) == ops


@given(m=SIZES, size=SIZES)
def test_a_frozen_product_runs_once_backward(m: int, size: int) -> None:
    # the gradient of its input, which for a square matrix is as long as the forward pass
    on = cluster_of("h100-80g").device
    frozen = replace(matmul("x", 1.0 * m, 1.0 * size, 1.0 * size), trained=False)
    forward, backward = seconds(on, frozen)
    assert backward == pytest.approx(forward, rel=1e-12)
    assert backward < seconds(on, replace(frozen, trained=True))[1]


@pytest.mark.parametrize("kind", ["best", "flash2", "unfused"])
def test_adapters_change_nothing_of_attention(kind: Any) -> None:
    # it has no weights: both of its products have two gradients, whatever is frozen
    profile = replace(PLAIN, attention=kind)
    on = Machine(cluster=cluster_of("h100-80g"), profile=profile)
    model, plan = model_of("llama-3.1-70b"), plan_of(tp=8)
    whole, frozen = (costs_of(model, plan, job_of(lora_rank=rank), on)[Kind.DENSE] for rank in (0, 8))
    assert frozen.forward_terms["attention"] == whole.forward_terms["attention"]
    assert frozen.backward_terms["attention"] == whole.backward_terms["attention"]


@pytest.mark.parametrize("name", ["llama-3.1-70b", "mixtral-8x7b"])
def test_frozen_weights_save_their_gradient_products(name: str) -> None:
    # a full backward pass is two products for each of the forward pass, a frozen one is one, and the thin ones
    model, on = model_of(name), machine_of("h100-80g", replace(PLAIN, graphs=True))
    for kind, whole in costs_of(model, plan_of(), job_of(), on).items():
        frozen = costs_of(model, plan_of(), job_of(lora_rank=1), on)[kind]
        products = [sum(c.backward_terms[word] for word in ("matmul", "experts")) for c in (frozen, whole)]
        assert products[0] <= 0.75 * products[1]
        assert frozen.forward.alone >= whole.forward.alone


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_frozen_parameter_is_a_weight_and_no_more(zero: int) -> None:
    plan = plan_of(dp=16, zero=zero)
    shards = 16 if zero == 3 else 1
    assert bytes_per_param(job_of(), PLAIN, plan)[2] == 2.0 / shards
    terms = resident_terms(job_of(), PLAIN, plan, Params(0.0, 0.0, 1e9))
    assert terms == {"weights": 2e9 / shards, "gradients": 0.0, "optimizer": 0.0}


def test_adapters_are_cut_over_tensor_parallelism_with_their_products() -> None:
    for op in ops_of(model_of("llama-3.1-70b"), plan_of(tp=8), job_of(lora_rank=8))[Kind.DENSE]:
        if op.engine in LINEAR and op.trained:
            base = op.name.split(" adapter")[0]
            (whole,) = [o for o in ops_of(model_of("llama-3.1-70b"), plan_of(tp=8))[Kind.DENSE] if o.name == base]
            thin = 8.0 * (whole.k if op.name.endswith("down") else whole.n)
            assert op.params == thin
            assert (op.m, op.shard) == (whole.m, Shard.TP)

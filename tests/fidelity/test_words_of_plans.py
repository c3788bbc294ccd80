"""What the words of a row mean for its plan, its job and the profile it runs under."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.balance.recompute import parse_policy
from autodeploy.errors import SpecError
from autodeploy.fidelity.machines import profile_of
from autodeploy.fidelity.plans import precision_of, recompute_of
from autodeploy.fidelity.runs import Run, run_of
from autodeploy.fidelity.shapes import model_of
from autodeploy.fidelity.stacks import stack_of
from autodeploy.spec.layout import expand
from autodeploy.spec.model import MLA
from autodeploy.spec.plan import CpComm, Dispatch, Overlap, Schedule
from tests.fidelity.little import GPT, SPARSE, row

V3 = GPT | {
    "model": "DeepSeek-V3, cropped", "layers": 8, "dense_layers": 3, "hidden": 1024, "ffn_hidden": 2048, "heads": 16,
    "moe_ffn_hidden": 512, "mla": True, "experts": 16, "topk": 4, "shared_experts": 1, "ep": 8,
}  # fmt: skip
PAIRED = SPARSE | {"hardware": "h100-80g-sxm"}
DENSE_POLICIES = {
    "none": "none",
    "full": "full",
    "full(checkpoint-activations)": "full",
    "full(gradient_checkpointing)": "full",
    "full/uniform/1": "full",
    "full/block/8": "full",
    "full/block/1": "full:0.125",
    "full/block/2": "full:0.25",
    "selective": "core_attn",
    "selective(core_attn)": "core_attn",
    "selective(mlp)": "mlp",
    "selective(mlp+core_attn)": "mlp+core_attn",
    "selective(layernorm+moe_act)": "layernorm",
    "activation-function": "mlp_act",
    "activation-function(n=8)": "mlp_act",
    "norm(n=8)": "layernorm",
    "layers=[3; 1]": "full:0.5",
    "layers=[8; 0]": "full",
    "layers=[0; 0]": "none",
    "none given": "none",
    "num-layers=4(no granularity flag)": "none",  # Megatron recomputes nothing without --recompute-granularity
}
"""Of 8 dense layers on one stage."""
SPARSE_POLICIES = {
    "selective": "core_attn",
    "selective(moe)": "moe",
    "selective(moe_act)": "moe_act",
    "selective(moe_act+layernorm)": "moe_act+layernorm",
    "selective(layernorm+moe_act+shared_experts)": "layernorm+moe_act+shared_experts",
    "selective(mla_up_proj+mlp)": "mla_up_proj+mlp",
    "selective(RMSNorm, MLA up-projection)": "layernorm+mla_up_proj",
    "selective(moe+layernorm+core_attn+moe_act)": "moe+layernorm+core_attn+moe_act",
    "full/block/4": "full:0.5",
}
SLOTS = {  # Megatron recomputes N layers of every chunk of every stage; one MindSpeed switch says: of every stage
    "one_stage": ({}, "full:0.125"),
    "two_stages": ({"pp": 2}, "full:0.25"),
    "four_stages": ({"pp": 4}, "full:0.5"),
    "two_chunks": ({"pp": 2, "vpp": 2}, "full:0.5"),
    "two_chunks_of_four_stages": ({"pp": 4, "vpp": 2}, "full"),
    "by_stage": ({"pp": 2, "vpp": 2, "overlap_notes": "enable-recompute-layers-per-pp-rank"}, "full:0.25"),
}
ZERO = {
    "not_sharded": ({"dist_optimizer": False}, 0),
    "distributed_optimizer": ({"dist_optimizer": True}, 1),
    "fsdp": ({"fsdp": True}, 3),
    "no_fsdp": ({"fsdp": False, "dist_optimizer": False}, 0),
    "gradients": ({"fsdp": True, "overlap_notes": "SHARD_GRAD_OP (ZeRO-2 like)"}, 2),
    "kept_after_forward": ({"fsdp": True, "notes": "no reshard after forward"}, 2),
    "full_shard": ({"overlap_notes": "FULL_SHARD", "notes": "DeepSpeed ZeRO-3"}, 3),
    "switch": ({"overlap_notes": "flash-attn;zero-stage=2;deepspeed"}, 2),
    "words": ({"notes": "trust=A; Megatron-DeepSpeed, ZeRO-1"}, 1),
}
EP_OVERLAP = {
    "HybridEP; EP overlap": True,
    "HybridEP; EP overlap on": True,
    "HybridEP; EP overlap off": False,
    "alltoall; no EP overlap": False,
    "alltoall; EP overlap + delayed wgrad": True,
    "EP all-to-all overlapped with compute": True,
    "moe-fb-overlap": True,
    "HybridEP; TE CUDA graphs": False,
    "TP and PP p2p overlap off": False,
}
MTP = {
    "published FLOPs include one MTP layer": True,
    "mtp-num-layers=1": True,
    "flops_check=causal+MTP(+0.2%)": True,
    "w/o MTP": False,
    "published FLOPs exclude MTP": False,
    "published FLOPs include one MTP layer; w/o MTP": False,
    "nothing about it": False,
}
GRAPHS = ("full-iteration CUDA graphs", "TE CUDA graphs moe_router", "CUDA graphs attn")


def run(base: dict[str, Any] | None = None, **changed: Any) -> Run:
    """The small row as a run, legal or refused."""
    return run_of(row(base, **changed))


def policy(text: str, base: dict[str, Any], **changed: Any) -> str:
    """What a recompute cell means."""
    each = row(base, recompute=text, **changed)
    return recompute_of(each, stack_of(each), model_of(each))


def layers_of(found: Run) -> list[str]:
    """Contents of every slot of a stated layout."""
    return expand(found.plan.layout)


@pytest.mark.parametrize(("text", "wanted"), DENSE_POLICIES.items())
def test_recompute_of_a_dense_model(text: str, wanted: str) -> None:
    assert policy(text, GPT) == wanted
    parse_policy(wanted)


@pytest.mark.parametrize(("text", "wanted"), SPARSE_POLICIES.items())
def test_recompute_of_a_sparse_model(text: str, wanted: str) -> None:
    assert policy(text, V3) == wanted
    parse_policy(wanted)


def test_recomputed_activations_of_a_sparse_model_are_the_experts() -> None:
    assert policy("activation-function", SPARSE) == "moe_act"


@pytest.mark.parametrize("name", SLOTS)
def test_recomputed_layers_are_those_of_every_slot(name: str) -> None:
    changed, wanted = SLOTS[name]
    assert policy("full/block/1", GPT, **changed) == wanted
    assert run(recompute="full/block/1", **changed).plan.recompute == wanted


def test_words_in_capitals_mean_the_same() -> None:
    assert policy("Full", GPT) == "full"
    assert policy("Selective(MLP)", GPT) == "mlp"


def test_a_row_that_says_nothing_takes_the_assumption_of_its_source() -> None:
    assert policy("", GPT, source="Narayanan et al. 2021") == "full"
    assert policy("none", GPT, source="Narayanan et al. 2021") == "none"
    assert policy("", GPT, source="MegaScale") == "none"


@pytest.mark.parametrize("listed", ["3,5", "3, 5"])
def test_listed_layers_become_a_layout(listed: str) -> None:
    found = run(pp=2, overlap_notes=f"use-mc2;num-layer-list={listed};flash-attn")
    assert layers_of(found) == ["Ettt", "tttttL"]


UNCUT = {
    "sum": ({"pp": 2}, "3,4", "sums to 7"),
    "stages": ({"pp": 4}, "3,5", "lists 2 stages"),
    "chunks": ({"pp": 2, "vpp": 2}, "3,5", "vpp is 2"),
    "no_layer": ({"pp": 4}, "4,0,2,2", "stage 1 holds no layer"),
}


@pytest.mark.parametrize("case", UNCUT)
def test_listed_layers_that_do_not_cut_the_model_are_a_reason(case: str) -> None:
    """MindSpeed-LLM refuses such a list at launch (num_layer_list.py): whatever ran, it was not this."""
    changed, listed, said = UNCUT[case]
    with pytest.raises(SpecError, match=f"num-layer-list: {listed} .*{said}"):
        run(**changed, overlap_notes=f"num-layer-list={listed}")


def test_noops_take_the_place_of_listed_layers() -> None:
    assert run(pp=2, overlap_notes="num-layer-list=3,4;noop-layers=0,7").plan.layout == "Et*3|t*3L"


def test_listed_layers_of_an_mtp_model_keep_its_module() -> None:
    found = run(V3, pp=2, gpus=16, overlap_notes="num-layer-list=5,3;mtp-num-layers=1")
    assert layers_of(found) == ["Ettttt", "tttmL"]


def test_a_stated_layout_becomes_the_layout() -> None:
    flags = "pp_layout Et*2|(t*2|)*2ttmL; HybridEP"
    found = run(V3, pp=2, vpp=2, gpus=16, overlap_notes=flags, notes="published FLOPs include one MTP layer")
    assert layers_of(found) == ["Ett", "tt", "tt", "ttmL"]


def test_two_layers_left_over_are_those_of_the_ends() -> None:
    """Megatron and the Llama 3 report: 126 layers on 16 x 8 chunks count embedding and head as one layer each."""
    assert layers_of(run(layers=10, pp=4)) == ["Ett", "ttt", "ttt", "ttL"]
    assert run(layers=8, pp=4).plan.layout == "even"


@pytest.mark.parametrize("name", ZERO)
def test_stages_of_sharding(name: str) -> None:
    changed, wanted = ZERO[name]
    assert run(**changed).plan.zero == wanted


@pytest.mark.parametrize("flags", ["Megatron-FSDP sharding group 4", "FSDP group 4 (PyTorch FSDP2)"])
def test_a_sharding_group_means_copies(flags: str) -> None:
    assert run(fsdp=True, notes=flags).plan.replicas == 2
    assert run(fsdp=True, zero1_group=4).plan.replicas == 2
    assert run(fsdp=True).plan.replicas == 1
    assert run(dist_optimizer=False, notes=flags).plan.replicas == 1


@pytest.mark.parametrize(("flags", "paired"), EP_OVERLAP.items())
def test_words_of_expert_overlap(flags: str, paired: bool) -> None:
    wanted = Overlap.PAIR if paired else Overlap.NONE
    assert run(PAIRED, overlap_notes=flags).plan.overlap is wanted
    assert run(PAIRED, notes=flags).plan.overlap is wanted


def test_expert_overlap_needs_experts_and_passes_to_merge() -> None:
    assert run(overlap_notes="EP overlap").plan.overlap is Overlap.NONE
    assert run(PAIRED, ep=1, overlap_notes="EP overlap").plan.overlap is Overlap.NONE
    assert run(PAIRED, pp=2, ep=4, overlap_notes="EP overlap").plan.overlap is Overlap.NONE
    assert run(PAIRED, pp=2, vpp=2, ep=4, overlap_notes="EP overlap").plan.overlap is Overlap.PAIR


@pytest.mark.parametrize(("notes", "trained"), MTP.items())
def test_words_of_mtp(notes: str, trained: bool) -> None:
    assert run(V3, notes=notes).space.job.mtp is trained


def test_only_a_model_with_a_module_trains_it() -> None:
    assert run(SPARSE, notes="published FLOPs include one MTP layer").space.job.mtp is False


def test_latent_attention_takes_the_published_ranks() -> None:
    assert run(V3).space.model.attention == MLA(
        heads=16, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128
    )


def test_adapters_are_trained_where_a_row_says_so() -> None:
    assert run(source="dgxc recipes", model="Llama little LORA").space.job.lora_rank == 32
    assert run(source="dgxc recipes", overlap_notes="LoRA").space.job.lora_rank == 32
    assert run(source="dgxc recipes").space.job.lora_rank == 0


def test_packed_documents_are_those_of_fine_tuning() -> None:
    tuned = {"source": "dgxc recipes", "model": "Llama little SFT"}
    assert run(**tuned, notes="packed sequences").space.job.document_len == 512
    assert run(**tuned).space.job.document_len == 0
    assert run(source="dgxc recipes", notes="packed sequences").space.job.document_len == 0


def test_forced_balance_is_even_routing() -> None:
    assert run(SPARSE, notes="force-balanced routing, dropless").space.job.expert_imbalance == 1.0
    assert run(SPARSE).space.job.expert_imbalance > 1.0


@pytest.mark.parametrize(
    ("word", "wanted"),
    [("bf16", "bf16"), ("", "bf16"), ("fp16", "fp16"), ("O2 (amp)", "fp16"), ("fp8", "fp8"), ("nvfp4", "nvfp4")],
)
def test_number_formats(word: str, wanted: str) -> None:
    assert precision_of(row(precision=word)) == wanted


def test_gradients_of_megatron_follow_the_format() -> None:
    source = {"source": "Narayanan et al. 2021"}
    assert run(**source, precision="fp16").space.job.grad_precision == "fp16"
    assert run(**source, precision="bf16").space.job.grad_precision == "fp32"


def test_ways_of_context_parallelism() -> None:
    assert run(cp=2).plan.cp_comm is CpComm.RING
    assert run(cp=2, overlap_notes="context-parallel-algo=ulysses_cp_algo").plan.cp_comm is CpComm.ULYSSES
    assert run(cp=2, notes="CP a2a").plan.cp_comm is CpComm.ULYSSES
    assert run(cp=2, source="Llama 3 herd of models").plan.cp_comm is CpComm.GATHER


def test_ways_of_dispatch_across_nodes() -> None:
    wide = PAIRED | {"experts": 16, "ep": 16, "gpus": 16}
    assert run(wide, overlap_notes="DeepEP").plan.dispatch is Dispatch.FUSED
    assert run(wide, overlap_notes="HybridEP").plan.dispatch is Dispatch.FUSED
    assert run(wide, overlap_notes="moe-token-dispatcher-type=allgather").plan.dispatch is Dispatch.GATHER
    assert run(wide, overlap_notes="hierarchical all-to-all").plan.dispatch is Dispatch.HIER
    assert run(wide, overlap_notes="alltoall").plan.dispatch is Dispatch.FLAT
    assert run(PAIRED, overlap_notes="DeepEP").plan.dispatch is Dispatch.FUSED
    assert run(PAIRED, overlap_notes="hierarchical all-to-all").plan.dispatch is Dispatch.FLAT  # one node


def test_capacities_fix_the_rows_of_an_expert() -> None:
    found = run(PAIRED, overlap_notes="moe-expert-capacity-factor=1.5")
    assert found.space.job.expert_imbalance == 1.5
    profile = found.space.target.profile
    assert (profile.moe_stalls, profile.moe_backward_stalls) == (0, 0)  # nothing to ask for


def test_what_a_row_states_counts_before_what_is_assumed() -> None:
    source = {"source": "Llama 3 herd of models", "pp": 2, "tp": 2, "gpus": 8}
    assert run(**source, layers=16).plan.vpp == 8
    found = run(**source, layers=16, vpp=2).plan
    assert (found.vpp, found.schedule) == (2, Schedule.INTERLEAVED)
    assert run(**source, layers=16, sequence_parallel=False).plan.sp is False
    assert run(**source, layers=16).plan.sp is True
    assert run(mbs=4).plan.mbs == 4


def test_devices_left_over_are_data_parallel() -> None:
    found = run(tp=2, pp=2, gpus=16).plan
    assert (found.tp, found.pp, found.cp, found.dp) == (2, 2, 1, 4)


@pytest.mark.parametrize("flags", GRAPHS)
def test_words_of_recorded_graphs(flags: str) -> None:
    assert profile_of(row(overlap_notes=flags), stack_of(row())).graphs is True
    assert profile_of(row(), stack_of(row())).graphs is False


def test_words_of_overlapped_tensor_parallelism() -> None:
    def overlaps(flags: str, source: str) -> bool:
        each = row(source=source, overlap_notes=flags)
        return profile_of(each, stack_of(each)).overlap_tensor

    assert overlaps("use-mc2", "readme-table") is True
    assert overlaps("userbuffers", "nobody knows") is True
    assert overlaps("", "nobody knows") is False
    assert overlaps("TP and PP p2p overlap off", "dgxc recipes") is False


def test_a_source_that_lists_all_kernels_has_no_others() -> None:
    source = {"source": "readme-table", "framework": "mindspeed-llm"}
    listed = row(**source, overlap_notes="flash-attn;use-fused-rmsnorm;overlap-grad-reduce")
    found = profile_of(listed, stack_of(listed))
    assert (found.attention, found.overlap_grad_reduce) == ("best", True)
    assert "norm" in found.fused
    bare = row(**source, overlap_notes="")
    found = profile_of(bare, stack_of(bare))
    assert (found.attention, found.overlap_grad_reduce) == ("unfused", False)
    assert "norm" not in found.fused

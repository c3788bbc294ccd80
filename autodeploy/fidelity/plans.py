"""From a row to the job and the plan that ran: what it states, and for the rest what is assumed of its source."""

from __future__ import annotations

import re
from typing import Literal

from autodeploy.errors import Fault, SpecError
from autodeploy.fidelity.cuts import layout_of
from autodeploy.fidelity.machines import capacity_of
from autodeploy.fidelity.rows import Row
from autodeploy.fidelity.stacks import Stack, policies
from autodeploy.spec.job import Job
from autodeploy.spec.model import Model
from autodeploy.spec.placement import TWO_CHUNKS, usual_schedule
from autodeploy.spec.plan import FIRST_OF_TWO, CpComm, Dispatch, Overlap, Plan, Schedule, States

NARROW = {"fp8": "fp8", "nvfp4": "nvfp4", "fp16": "fp16", "o2 (amp)": "fp16"}
SCHEDULES = {
    "schedule ZB-1p": Schedule.ZB_H1,
    "schedule ZB-2p": Schedule.ZB_H2,
    "schedules-method=dualpipev": Schedule.DUALPIPE_V,
    "DualPipe:": Schedule.DUALPIPE,
}
"""As rows say them. The zero-bubble runs have orders that a solver found within the memory of these
(arXiv 2401.10241)."""
MODULES = {
    "layernorm": "layernorm", "rmsnorm": "layernorm", "norm": "layernorm", "moe_act": "moe_act", "mlp": "mlp",
    "moe": "moe", "mla_up_proj": "mla_up_proj", "mla up-projection": "mla_up_proj", "shared_experts": "shared_experts",
    "core_attn": "core_attn", "activation-function": "mlp_act+moe_act",
}  # fmt: skip
"""Words for recomputed modules in tables of runs, and ours."""
"""Words of layouts, and the flags of rows that state them."""
FULL = re.compile(r"full(?:\(.*\))?(?:/(uniform|block|unspecified)/(\d+))?")


def job_of(row: Row, stack: Stack, model: Model) -> Job:
    """The job of a row. Raises `SpecError` without a global batch: it is never guessed."""
    gbs, seq_len = row.gbs, row.seq_len
    if gbs is None or seq_len is None:
        missing = [name for name in ("gbs", "seq_len") if getattr(row, name) is None]
        raise SpecError(*[Fault(path=name, problem="is not stated, and is not guessed") for name in missing])
    tuned = row.says("packed sequences", "packed fine-tuning", "packed samples") and "SFT" in row.model
    return Job(
        gbs=gbs,
        seq_len=seq_len,
        precision=precision_of(row),
        grad_precision=_grads(row, stack),
        moment_precision=stack.moment_precision,
        mtp=bool(model.mtp_depth) and _mtp(row, stack),
        document_len=stack.document_len if tuned else 0,
        lora_rank=stack.lora_rank if "lora" in f"{row.model} {row.flags}".lower() else 0,
        expert_imbalance=1.0 if row.says("force-balanced") else capacity_of(row) or stack.expert_imbalance,
    )


def precision_of(row: Row) -> Literal["bf16", "fp16", "fp8", "nvfp4"]:
    """The number format of a row; 16 bits where it does not say."""
    word = NARROW.get(row.precision.lower(), "bf16")
    return "fp8" if word == "fp8" else "nvfp4" if word == "nvfp4" else "fp16" if word == "fp16" else "bf16"


def _grads(row: Row, stack: Stack) -> Literal["fp32", "bf16", "fp16"]:
    if stack.grad_precision != "megatron":
        return stack.grad_precision
    return "fp16" if precision_of(row) == "fp16" else "fp32"


def _mtp(row: Row, stack: Stack) -> bool:
    if row.says("w/o mtp", "exclude mtp", "without mtp"):
        return False
    return stack.mtp or row.says("include one mtp", "mtp-num-layers=1", "causal+mtp")


def plan_of(row: Row, stack: Stack, model: Model) -> Plan:
    """The plan of a row. Raises `SpecError` where its degrees are missing or do not multiply."""
    degrees = _degrees(row)
    tp, pp, cp, dp = (degrees[name] for name in ("tp", "pp", "cp", "dp"))
    mbs = row.mbs or _mbs(row, stack, pp, dp)
    schedule = _schedule(row)
    vpp = TWO_CHUNKS if schedule >= FIRST_OF_TWO else row.vpp or _vpp(row, stack, model, pp, dp * mbs)
    moe = model.moe
    ep = (row.ep or 1) if moe else 1
    zero, replicas = _sharding(row, stack, dp * cp, pp)
    pair = moe is not None and ep > 1 and (pp == 1 or vpp > 1) and merges(row)
    return Plan(
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        dp=dp,
        ep=ep,
        etp=_etp(row, stack, tp, ep, dp * cp) if moe else 1,
        mbs=mbs,
        sp=tp > 1 and _is_sequence_parallel(row, stack),
        schedule=schedule or usual_schedule(vpp),
        overlap=Overlap.PAIR if pair else Overlap.NONE,
        dispatch=_dispatch(row, stack),
        zero=zero,
        cp_comm=_cp_comm(row, stack) if cp > 1 else CpComm.RING,
        replicas=replicas,
        states=_states(row),
        layout=layout_of(row, stack, model, pp, vpp, _mtp(row, stack)),
        recompute=recompute_of(row, stack, model),
    )


def _is_sequence_parallel(row: Row, stack: Stack) -> bool:
    """tp-2d spreads what lies between its products over all of tp, tokens over one factor and channels over the other:
    the bytes taken are those of sequence parallelism (assumed; docs/memory.md)."""
    if row.says("tp-2d"):
        return True
    return stack.sequence_parallel if row.sequence_parallel is None else row.sequence_parallel


def _schedule(row: Row) -> Schedule:
    """A stated schedule with weight gradients apart; 1F1B stands for none stated."""
    for word, schedule in SCHEDULES.items():
        if row.says(word):
            return schedule
    return Schedule.ONE_F_ONE_B


def _degrees(row: Row) -> dict[str, int]:
    """tp, pp, cp as stated, dp from the devices; a stated dp must agree."""
    needed = ("devices", "tp", "pp")
    faults = [Fault(path=name, problem="is not stated") for name in needed if getattr(row, name) is None]
    if faults:
        raise SpecError(*faults)
    tp, pp, cp, devices = row.tp or 1, row.pp or 1, row.cp or 1, row.devices or 1
    share, rest = divmod(devices, tp * pp * cp)
    if rest or not share:
        raise SpecError(Fault(path="tp x pp x cp", problem=f"{tp} x {pp} x {cp} does not divide {devices} devices"))
    if row.dp not in (None, share) and not row.says("dp column", "printed dp"):
        problem = f"{row.dp} x tp {tp} x pp {pp} x cp {cp} is not {devices} devices"
        raise SpecError(Fault(path="dp", problem=problem, allowed=str(share)))
    return {"tp": tp, "pp": pp, "cp": cp, "dp": share}


def _mbs(row: Row, stack: Stack, pp: int, dp: int) -> int:
    """One sequence, or all of a rank's where the stack does not split them."""
    whole = max((row.gbs or dp) // dp, 1)
    return whole if stack.mbs == "all" and pp == 1 else 1


def _vpp(row: Row, stack: Stack, model: Model, pp: int, rank_sequences: int) -> int:
    """The assumed interleaving where the row leaves it out, if layers and microbatches allow it."""
    microbatches, even = divmod(row.gbs or 0, rank_sequences)
    if pp == 1 or even or microbatches < pp or microbatches % pp:
        return 1
    if not stack.chunk_layers:
        return stack.vpp
    return 1 if model.layers % (pp * stack.chunk_layers) else model.layers // (pp * stack.chunk_layers)


def _sharding(row: Row, stack: Stack, group: int, pp: int) -> tuple[Literal[0, 1, 2, 3], int]:
    """The ZeRO stage, and the copies of the sharded state."""
    alone = stack.zero_without_pipeline
    zero: int = stack.zero if alone is None or pp > 1 else alone
    stage = re.search(r"zero-stage=(\d)", row.flags) or re.search(r"zero-(\d)", row.notes, re.IGNORECASE)
    if row.dist_optimizer is not None:
        zero = min(zero, 1) or 1 if row.dist_optimizer else 0
    if row.fsdp is not None:
        zero = 3 if row.fsdp else min(zero, 1)
    if row.says("shard_grad_op", "no reshard after forward"):
        zero = 2
    if stage:
        zero = int(stage[1])
    if zero == 3 and pp > 1 and stack.zero_in_pipeline is not None:
        zero = stack.zero_in_pipeline
    size = row.zero1_group or _stated_group(row)
    copies = group // size if zero and size and group % size == 0 else 1
    return (0, 1, 2, 3)[min(zero, 3)], copies


def _stated_group(row: Row) -> int | None:
    found = re.search(r"(?:sharding group|fsdp group) (\d+)", f"{row.flags}; {row.notes}", re.IGNORECASE)
    return int(found[1]) if found else None


def _etp(row: Row, stack: Stack, tp: int, ep: int, ranks: int) -> int:
    stated = re.search(r"expert-tensor-parallel(?:-size)?=(\d+)", row.flags)
    if row.etp or stated:
        return row.etp or int(stated[1] if stated else 1)
    return tp if stack.etp == "tp" and ranks % ep == 0 else 1


def merges(row: Row) -> bool:
    """Whether the row says that forward and backward passes hide each other's all-to-all."""
    if row.says("ep overlap off", "no ep overlap"):
        return False
    return row.says("ep all-to-all overlap", "ep overlap", "dualpipe", "moe-fb-overlap", "adaptive-pipe")


def _dispatch(row: Row, stack: Stack) -> Dispatch:
    if row.says("hierarchical all-to-all"):
        return Dispatch.HIER
    if row.says("deepep", "hybridep"):
        return Dispatch.FUSED
    if row.says("token-dispatcher-type=allgather"):
        return Dispatch.GATHER
    plain = row.says("alltoall", "plain all-to-all")
    return Dispatch.FUSED if stack.dispatch == "fused" and not plain else Dispatch.FLAT


def _states(row: Row) -> States:
    """By MindSpeed's switches."""
    if row.says("swap-optimizer"):
        return States.HOST
    return States.REUSE if row.says("reuse-fp32-param") else States.DEVICE


def _cp_comm(row: Row, stack: Stack) -> CpComm:
    if row.says("ulysses", "cp a2a", "hybrid_cp_algo"):
        return CpComm.ULYSSES
    return {"ring": CpComm.RING, "kvgather": CpComm.GATHER, "ulysses": CpComm.ULYSSES}[stack.cp_comm]


def recompute_of(row: Row, stack: Stack, model: Model) -> str:
    """The recompute policy of a row, with what it swaps. Raises `SpecError` for words that say none."""
    rebuilt = _rebuilt(row, stack, model)
    if rebuilt == "none" and row.says("moe-zero-memory=level1"):  # which rebuilds all that the experts keep
        rebuilt = "moe+moe_act"
    if not row.says("swap-attention") or rebuilt.startswith("full"):
        return rebuilt
    return "swap:attention" + ("" if rebuilt == "none" else f"+{rebuilt}")


def _rebuilt(row: Row, stack: Stack, model: Model) -> str:
    text = row.recompute.strip().lower()
    if text in ("", "selective"):
        return stack.selective if text else stack.recompute
    if text in policies():
        return policies()[text]
    if text in ("none", "none given") or text.startswith("num-layers="):
        return _without_granularity(text, row, model)
    if text.startswith("full"):
        return _full(text, row, model)
    if re.match(r"(selective|activation-function|norm|comm)\b", text):
        return _modules(text, model) if _on_most_layers(text, row, model) else "none"
    if text.startswith("layers="):
        counts = [int(n) for n in re.findall(r"\d+", text)]
        return _share(sum(counts) / model.layers)
    allowed = "none, full, full/block/N, selective, selective(modules), layers=[..]"
    raise SpecError(Fault(path="recompute", problem=f"{row.recompute!r} does not say what is rebuilt", allowed=allowed))


def _without_granularity(text: str, row: Row, model: Model) -> str:
    """Nothing, as in Megatron; but MindSpeed's swap of attention rebuilds the feed-forward of `num-layers` layers a
    stage."""
    if not (text.startswith("num-layers=") and row.says("swap-attention") and _on_most_layers(text, row, model)):
        return "none"
    return "mlp" if model.moe is None else "moe+shared_experts"


def _on_most_layers(text: str, row: Row, model: Model) -> bool:
    """Whether a policy that names a count of layers a stage (`(n=N)`, `num-layers=N`) reaches half of them."""
    count = re.search(r"\b(?:n|num-layers)=(\d+)", text)
    return count is None or 2 * int(count[1]) * (row.pp or 1) >= model.layers


def _full(text: str, row: Row, model: Model) -> str:
    found = FULL.match(text)
    if not found or found[1] != "block":
        return "full"
    slots = (row.pp or 1) * (1 if row.says("enable-recompute-layers-per-pp-rank") else row.vpp or 1)
    return _share(int(found[2]) * slots / model.layers)


def _share(share: float) -> str:
    if share <= 0.0:
        return "none"
    return "full" if share >= 1.0 else f"full:{share:.4g}"


def _modules(text: str, model: Model) -> str:
    """Named modules; `selective` without one of ours is the attention core, as in Megatron."""
    counts = re.search(r"selective=\[([\d; ]+)\]", text)
    if counts:
        return _share(0.5 * sum(int(n) for n in counts[1].split(";")) / model.layers)
    inside = re.search(r"\((.*)\)", text)
    words = (
        re.split(r"[+,]\s*", inside[1])
        if inside and not inside[1].startswith("n=")
        else [text.split("(", maxsplit=1)[0]]
    )
    known = [part for word in words for part in MODULES.get(word.strip(), "").split("+") if part]
    if not known:
        return "core_attn"
    useless = {"moe_act", "moe", "shared_experts"} if model.moe is None else {"mlp_act"}
    kept = [name for name in dict.fromkeys(known) if name not in useless]
    return "+".join(kept) or "none"

"""From a published figure to seconds a step, by the count of FLOP that its source used; and what contradicts it."""

from __future__ import annotations

import re

from autodeploy.analysis.readings import flop_per_token
from autodeploy.errors import Fault, SpecError
from autodeploy.fidelity.rows import UNITS, Row
from autodeploy.fidelity.stacks import Stack
from autodeploy.spec.cluster import Device
from autodeploy.spec.job import Job
from autodeploy.spec.model import GQA, Model, decoder_kinds
from autodeploy.units import GIB, GIGA, MIB, TERA

PASSES = 3.0
"""Forward passes that a training step counts; full recompute is one more, of all but the head."""
AGREES = 0.03
"""A figure and its twin may differ by rounding."""
_TWINS = (
    (re.compile(r"published tokens/s \(all GPUs\) (\d+(?:\.\d+)?)"), "tokens/s of all devices"),
    (re.compile(r"published step time (\d+(?:\.\d+)?) ?s(?! used)"), "step time"),
)


def step_seconds(row: Row, job: Job, model: Model, device: Device, stack: Stack, full_recompute: bool) -> float | None:
    """The measured step, None where the row holds none. Raises `SpecError` where it contradicts itself or the peak."""
    metric, value, devices = UNITS.get(row.metric, ""), row.value, row.devices or 1
    if value is None or metric in ("", "peak_memory_gb"):
        return None
    tokens = 1.0 * job.gbs * job.seq_len
    if metric == "step_time_s":
        seconds = value
    elif metric == "tokens_per_s_per_device":
        seconds = tokens / (value * devices)
    elif metric == "samples_per_s":
        seconds = job.gbs / value
    else:
        flop = published_flop(row, job, model, stack, full_recompute)
        rate = value * TERA if metric == "tflop_per_s_per_device" else value / 100.0 * _mfu_peak(job, device, stack)
        seconds = tokens * flop / (rate * devices)
    _check(row, job, model, device, seconds)
    return seconds


def published_flop(row: Row, job: Job, model: Model, stack: Stack, full_recompute: bool) -> float:
    """FLOP a token as the source counts them: attention halved, whole or left out; recompute counted or not."""
    halved = flop_per_token(model, job.seq_len, job.mtp)
    scores = 3.0 * score_flop_per_token(model, job.seq_len, job.mtp)
    words = row.flops_convention.lower()
    kind = stack.scores
    if "not causal-halved" in words or "not halved" in words:
        kind = "full"
    elif "causal (halved)" in words or "causal-halved" in words:
        kind = "causal"
    elif "without the attention" in words:
        kind = "none"
    flop = halved + {"full": scores, "causal": 0.0, "none": -scores}[kind]
    if "hardware" not in words or not full_recompute:
        return flop
    head = 2.0 * model.hidden * model.vocab * (1.0 + (model.mtp_depth if job.mtp else 0))
    return flop + flop / PASSES - head


def score_flop_per_token(model: Model, seq_len: int, mtp: bool) -> float:
    """Forward FLOP of the attention scores and weighted values of all layers, causal halved, without windows."""
    attention = model.attention
    if isinstance(attention, GQA):
        width = 2 * attention.head_dim
    else:
        width = attention.nope_dim + attention.rope_dim + attention.v_dim
    layers = len(decoder_kinds(model)) + (model.mtp_depth if mtp else 0)
    return 1.0 * seq_len * attention.heads * width * layers


def _mfu_peak(job: Job, device: Device, stack: Stack) -> float:
    if stack.mfu_peak_flop_per_s:
        return stack.mfu_peak_flop_per_s
    return peak_of(job, device)


def peak_of(job: Job, device: Device) -> float:
    """Dense peak of the device in the job's number format."""
    rate = getattr(device, job.precision, None) if job.precision in ("fp8", "nvfp4") else None
    return rate.peak_flop_per_s if rate else device.peak_flop_per_s


def _check(row: Row, job: Job, model: Model, device: Device, seconds: float) -> None:
    """No run is faster than the peak, and a second figure for the same thing agrees with the first."""
    faults = []
    least = flop_per_token(model, job.seq_len, job.mtp) * (2.0 / 3.0 if job.lora_rank else 1.0)
    rate = job.gbs * job.seq_len * least / (seconds * (row.devices or 1))
    if rate > peak_of(job, device):
        problem = f"{row.value:g} means {rate / TERA:.0f} TFLOP/s a device, above the peak of {device.name}"
        faults.append(Fault(path="value", problem=problem, allowed=f"at most {peak_of(job, device) / TERA:.0f}"))
    for pattern, name in _TWINS:
        twin = pattern.search(row.notes)
        if twin and not row.says("half the implied", "broken cell", "used to derive", "is half of"):
            other = float(twin[1]) if name == "step time" else job.gbs * job.seq_len / float(twin[1])
            if abs(other / seconds - 1.0) > AGREES:
                problem = f"a step of {seconds:.4g} s contradicts the {name} in the notes ({other:.4g} s)"
                faults.append(Fault(path="value", problem=problem))
    if faults:
        raise SpecError(*faults)


def peak_memory_bytes(row: Row, stack: Stack) -> float | None:
    """The measured peak of the fullest rank, where notes or the metric give one."""
    units = {"gib": GIB, "gb": GIB if stack.binary_gigabytes else GIGA, "mib": MIB}
    if UNITS.get(row.metric) == "peak_memory_gb" and row.value:
        return row.value * units["gb"]
    found = re.search(r"peak_(mem|alloc)(_mib|_gib|_gb)?[=~ ]+(\d+(?:\.\d+)?) ?(GiB|GB|MiB)?", row.notes)
    if not found:
        return None
    unit = (found[4] or (found[2] or "_gb").strip("_")).lower()
    return float(found[3]) * units[unit]

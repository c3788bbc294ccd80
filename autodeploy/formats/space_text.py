"""A space as a commented TOML file, so that a search started without one can be repeated and edited."""

from __future__ import annotations

import json
from typing import Any

from autodeploy.spec.space import Space

COMMENTS = {
    "tp": "tensor parallel",
    "pp": "pipeline stages",
    "vpp": "chunks per stage; 1 is plain 1F1B; zbv, dualpipev and dualpipe take 2",
    "cp": "context parallel",
    "ep": "expert group, over tp x cp x dp",
    "etp": "tensor parallel inside an expert; 1 with a large ep is TP-extend-EP",
    "mbs": "sequences per micro-batch",
    "sp": "sequence parallelism; unset: wherever tp > 1",
    "schedule": "1f1b | interleaved | zbh1 | zbh2 | zbv | dualpipev | dualpipe; unset: 1f1b, interleaved where vpp > 1",
    "overlap": "none | pair: merged forward and backward passes hide each other's all-to-all",
    "dispatch": "flat | hier | dedup | gather | fused: all-to-all; all-gather across nodes, then inside; once a node "
    "and rank; all tokens to all ranks; once, forwarded by one kernel",
    "zero": "0 | 1 | 2 | 3: nothing, optimizer state, also gradients, also weights sharded over data parallelism",
    "cp_comm": "ring | kvgather | ulysses: how context ranks share keys and values",
    "replicas": "copies of the sharded state; 1: one over dp x cp",
    "states": "device | reuse | host: optimizer state here, sharing its upper halves with the weights, or on the host",
    "layout": "auto | even | light | apart | late, a layout string, or a framework's words (docs/layouts.md)",
    "recompute": "none | fit | full | full:SHARE, or modules joined by +",
}


def space_text(space: Space) -> str:
    """The text of a space file."""
    job = space.job
    lines = [
        f"# {_one_line(space.model.title)} on {space.devices} x {space.cluster.device.name}",
        f"name = {_toml(space.name)}",
        *(f"{key} = {_toml(space.inputs[key])}" for key in ("model", "cluster", "target")),
        f"devices = {space.devices}",
        *(f"{key} = {_toml(list(getattr(space, key)))}" for key in ("only", "ban") if getattr(space, key)),
        "",
        "[job]",
        f"gbs = {job.gbs}  # sequences per step over the whole cluster",
        f"seq_len = {job.seq_len}",
        f"precision = {_toml(job.precision)}",
        f"optimizer = {_toml(job.optimizer)}",
        f"grad_precision = {_toml(job.grad_precision)}",
        f"moment_precision = {_toml(job.moment_precision)}  # of Adam's moments",
        f"document_len = {job.document_len}  # tokens of packed documents, averaged over tokens; 0: the sequence",
        f"lora_rank = {job.lora_rank}  # adapters beside frozen weights; 0: all is trained",
        f"mtp = {_toml(job.mtp)}  # train the MTP modules, where the model has any",
        f"expert_imbalance = {job.expert_imbalance}  # busiest expert rank over the mean",
        "",
        "[plan]",
        *_plan_lines(space),
    ]
    return "\n".join(lines) + "\n"


def _plan_lines(space: Space) -> list[str]:
    values = {name: getattr(space.plan, name) for name in COMMENTS}
    return [f"{name} = {_toml(value)}  # {COMMENTS[name]}" for name, value in values.items() if value is not None]


def _toml(value: Any) -> str:
    """A TOML value; JSON's strings, numbers, booleans and arrays are TOML's."""
    text = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # which TOML alone does not take as it is


def _one_line(text: str) -> str:
    return "".join(mark if mark.isprintable() else " " for mark in text)

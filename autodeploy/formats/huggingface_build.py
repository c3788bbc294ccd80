"""From a sheet to a model: attention, feed-forward, experts, ends."""

from __future__ import annotations

from typing import Literal

from autodeploy.formats.huggingface_layers import first_and_every, sparse_layers
from autodeploy.formats.huggingface_reach import is_biased, node_limit_of, window_frac_of, window_of
from autodeploy.formats.huggingface_sheet import STAND_IN, Sheet, shown
from autodeploy.spec.model import GQA, MLA, Model, MoE

PLAIN_ACTIVATIONS = ("gelu", "relu", "quick_gelu", "squared_relu", "relu2")
LONGEST = 131072
"""Stands in where a file does not say how long a sequence may be."""
WIDEST = 100
"""A feed-forward wider than so many hidden sizes is a mistake."""
DEEPEST = 10_000
"""So are more layers than this."""


def model_of(sheet: Sheet, name: str, title: str) -> Model:
    """The model that a sheet describes; sizes of faulty keys are stand-ins."""
    hidden, layers = sheet.count("hidden"), layers_of(sheet)
    moe = moe_of(sheet, hidden, layers)
    longest = sheet.count("max_seq_len", LONGEST, "not in the file")
    return Model(
        name=name,
        title=title,
        hidden=hidden,
        layers=layers,
        vocab=sheet.count("vocab"),
        attention=mla_of(sheet) if sheet.value("attention.kv_rank") else gqa_of(sheet, hidden),
        ffn_width=dense_width(sheet, hidden, moe),
        gated=is_gated(sheet),
        moe=moe,
        mtp_depth=mtp_depth(sheet),
        norms_per_layer=norms_per_layer(sheet),
        norm="layernorm" if uses_layernorm(sheet) else "rmsnorm",
        linear_bias=sheet.flag("linear_bias"),
        tied_embeddings=are_tied(sheet),
        learned_positions=longest if sheet.family.values.get("learned_positions") else 0,
        alibi=is_biased(sheet),
        window=window_of(sheet),
        window_frac=window_frac_of(sheet) if window_of(sheet) else 1.0,
        max_seq_len=longest,
    )


def layers_of(sheet: Sheet) -> int:
    """Decoder layers, MTP apart."""
    layers = sheet.count("layers")
    if layers <= DEEPEST:
        return layers
    sheet.fault(str(sheet.key("layers")), f"not {layers}", f"at most {DEEPEST}")
    return STAND_IN


def gqa_of(sheet: Sheet, hidden: int) -> GQA:
    """Grouped-query attention; the head size counts before hidden / heads."""
    heads = sheet.count("attention.heads")
    kv_heads = kv_heads_of(sheet, heads)
    if heads % kv_heads and sheet.sound("attention.heads", "attention.kv_heads"):
        sheet.fault(str(sheet.key("attention.kv_heads")), f"{kv_heads} does not divide the {heads} heads")
    return GQA(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim_of(sheet, hidden, heads),
        qkv_bias=sheet.flag("attention.qkv_bias"),
        qk_norm=sheet.flag("attention.qk_norm"),
    )


def kv_heads_of(sheet: Sheet, heads: int) -> int:
    """One with multi-query attention; as many as query heads where the file is silent."""
    data = sheet.level.data
    multi_query = data.get("multi_query", sheet.family.values.get("multi_query", False))
    if multi_query is True and not data.get("new_decoder_architecture"):
        sheet.assume("attention.kv_heads", 1, "multi-query attention")
        return 1
    return sheet.count("attention.kv_heads", heads, "as many as heads")


def head_dim_of(sheet: Sheet, hidden: int, heads: int) -> int:
    """From the file or the class, else hidden / heads."""
    known = sheet.key("attention.head_dim") is not None or "attention.head_dim" in sheet.family.values
    if not known and hidden % heads and sheet.sound("hidden", "attention.heads"):
        sheet.fault(str(sheet.key("attention.heads")), f"{heads} heads do not divide the hidden size {hidden}")
    return sheet.count("attention.head_dim", max(hidden // heads, 1), "hidden / heads")


def mla_of(sheet: Sheet) -> MLA:
    """Latent attention; its head counts and sizes have nothing to do with kv heads and head_dim."""
    return MLA(
        heads=sheet.count("attention.heads"),
        q_rank=sheet.count("attention.q_rank", 0, "no latent for the queries", least=0),
        kv_rank=sheet.count("attention.kv_rank"),
        nope_dim=sheet.count("attention.nope_dim"),
        rope_dim=sheet.count("attention.rope_dim"),
        v_dim=sheet.count("attention.v_dim"),
    )


def moe_of(sheet: Sheet, hidden: int, layers: int) -> MoE | None:
    """Experts and the layers that have them; none where there are fewer than two."""
    missing = sheet.key("moe.experts") is None and sheet.value("moe.top_k")
    experts = sheet.count("moe.experts", None if missing else 0, least=0)
    sparse = sparse_layers(sheet, layers) if experts > 1 else ()
    if not any(sparse):
        return None
    top_k = sheet.count("moe.top_k")
    if top_k > experts and sheet.sound("moe.experts", "moe.top_k"):
        sheet.fault(str(sheet.key("moe.top_k")), f"{top_k} of {experts} experts", f"at most {experts}")
    width = ffn_count(sheet, "moe.expert_width", hidden)
    first, every = first_and_every(sheet, sparse)
    shared = shared_width(sheet, width)
    return MoE(
        experts=experts, top_k=top_k, expert_width=width, shared_width=shared, first_dense=first, every=every,
        node_limit=node_limit_of(sheet),
    )  # fmt: skip


def shared_width(sheet: Sheet, expert_width: int) -> int:
    """The width of all shared experts: given whole, or as a number of experts."""
    number = sheet.count("moe.shared_experts", 0, least=0)
    if sheet.key("moe.shared_width") is None:
        return number * expert_width
    width = sheet.count("moe.shared_width", least=0)
    if number > 1 and width != number * expert_width:
        sheet.assume("moe.shared_width", width, f"taken for all {number} shared experts together")
    return width


def dense_width(sheet: Sheet, hidden: int, moe: MoE | None) -> int:
    """Of the dense feed-forward; without dense layers any width will do."""
    ratio = sheet.level.data.get("expansion_ratio", sheet.family.values.get("ffn_ratio"))
    if sheet.key("ffn_width") is not None:
        return sheet.count("ffn_width")
    if isinstance(ratio, int) and ratio > 0:
        return sheet.count("ffn_width", ratio * hidden, f"{ratio} x hidden")
    if moe is not None and moe.first_dense == 0 and moe.every == 1:
        return sheet.count("ffn_width", moe.expert_width, "the expert width: no layer is dense")
    return ffn_count(sheet, "ffn_width", hidden)


def ffn_count(sheet: Sheet, name: str, hidden: int) -> int:
    """A width as given, else from Grok-1's widening factor."""
    factor = sheet.level.data.get("widening_factor")
    if sheet.key(name) is not None or factor is None:
        return sheet.count(name)
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < WIDEST:
        sheet.fault("widening_factor", f"not {shown(factor)}", f"a number between 0 and {WIDEST}")
        return STAND_IN
    return sheet.count(name, widened(factor, hidden), "2/3 of widening_factor x hidden, as Grok-1 rounds it")


def widened(factor: float, hidden: int) -> int:
    """Grok-1's widening factor of 8 means 2/3 of that, rounded up to a multiple of 8 (xai-org/grok-1 model.py)."""
    width = int(factor * hidden) * 2 // 3
    return width + -width % 8


def mtp_depth(sheet: Sheet) -> int:
    """MTP modules, read where the layers are."""
    if sheet.level.data.get("use_mtp") is False:
        return 0
    return sheet.count("mtp_depth", 0, least=0)


def norms_per_layer(sheet: Sheet) -> Literal[2, 4]:
    """Four with sandwich norms."""
    if sheet.key("sandwich") is not None:
        return 4 if sheet.flag("sandwich") else 2
    return 4 if sheet.of_class("norms_per_layer", 2) == 4 else 2


def uses_layernorm(sheet: Sheet) -> bool:
    """The file's own word, else an RMS epsilon, else the class."""
    data = sheet.level.data
    word = data.get("norm_type", data.get("layer_norm_type"))
    if isinstance(word, str):
        return "rms" not in word.lower()
    if data.get("rmsnorm") is True or "rms_norm_eps" in data:
        return False
    return sheet.family.values.get("norm") == "layernorm"


def is_gated(sheet: Sheet) -> bool:
    """By class; of an unknown class by the activation."""
    values, activation = sheet.family.values, sheet.value("activation")
    if "gated" in values or sheet.family.known:
        return bool(values.get("gated", True))
    plain = isinstance(activation, str) and activation.lower().startswith(PLAIN_ACTIVATIONS)
    if plain:
        sheet.assume("gated", False, f"from the activation {shown(activation)}")
    return not plain


def are_tied(sheet: Sheet) -> bool:
    """From this level, else from one around it, else from the class, else untied."""
    around = sheet.level.named("tie_word_embeddings")
    if sheet.key("tied_embeddings") is None and isinstance(around, bool):
        return around
    if sheet.key("tied_embeddings") is None and "tied_embeddings" not in sheet.family.values:
        sheet.assume("tied_embeddings", False, "not in the file")
    return sheet.flag("tied_embeddings")

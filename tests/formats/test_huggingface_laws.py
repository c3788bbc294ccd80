"""What must not matter when a config.json is read: nulls, spelling, order, nesting; and that nothing else than a
`SpecError` comes out of nonsense.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from autodeploy.errors import SpecError
from autodeploy.formats.huggingface import Imported, read_config
from autodeploy.formats.huggingface_keys import ALIASES, NESTS
from autodeploy.formats.huggingface_layers import PATTERNS
from autodeploy.spec.model import GQA, MLA, Kind, Model, MoE, decoder_kinds
from tests.formats.test_huggingface import NAMES, READ, fixture, read

FLAT = [name for name in READ if name not in ("gemma-3-27b", "kimi-k2.5-multimodal", "llama-4-maverick", "dbrx")]


def outcome(data: dict[str, Any]) -> Any:
    try:
        return read_config(data, "x.json")
    except SpecError as error:
        return error.faults


UNSHARED = {
    name: [key for key in keys if sum(key in others for others in ALIASES.values()) == 1]
    for name, keys in ALIASES.items()
}
OWNER = {key: name for name, keys in UNSHARED.items() for key in keys if name != "max_seq_len"}


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from(NAMES))
def test_null_is_missing(data: st.DataObject, name: str) -> None:
    given_keys = fixture(name)
    dropped = data.draw(st.sets(st.sampled_from(sorted(given_keys))))
    absent = data.draw(st.sets(st.sampled_from(sorted(OWNER))))
    missing = {key: value for key, value in given_keys.items() if key not in dropped}
    nulls = dict.fromkeys(absent - set(given_keys)) | {k: None if k in dropped else v for k, v in given_keys.items()}
    assert outcome(nulls) == outcome(missing)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(FLAT))
def test_spelling_and_order_do_not_matter(data: st.DataObject, name: str) -> None:
    keys = data.draw(st.permutations(sorted(fixture(name))))
    owned = Counter(OWNER.get(key) for key in keys)
    renamed = {}
    for key in keys:
        single = key in OWNER and owned[OWNER[key]] == 1
        renamed[data.draw(st.sampled_from(UNSHARED[OWNER[key]])) if single else key] = fixture(name)[key]
    assert read_config(renamed, name).model == read(name).model


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FLAT), st.lists(st.sampled_from(NESTS), min_size=1, max_size=3))
def test_nesting_does_not_matter(name: str, nests: list[str]) -> None:
    nested: dict[str, Any] = fixture(name)
    for nest in nests:
        nested = {"model_type": "a_wrapper", nest: nested, "vision_config": {"hidden_size": 8}}
    imported = read_config(nested, name)
    assert imported.model == read(name).model
    assert imported.assumed[0] == f"level: {'.'.join(reversed(nests))}, the language model; nothing else is planned"


COUNTS = st.integers(1, 10**6)
HEADS = st.builds(lambda groups, each: (groups * each, groups), st.integers(1, 64), st.integers(1, 64))
GQAS = st.builds(
    lambda heads, **rest: GQA(heads=heads[0], kv_heads=heads[1], **rest),
    heads=HEADS, head_dim=COUNTS, qkv_bias=st.booleans(), qk_norm=st.booleans(),
)  # fmt: skip
MLAS = st.builds(MLA, kind=st.just("mla"), **dict.fromkeys(
    ("heads", "q_rank", "kv_rank", "nope_dim", "rope_dim", "v_dim"), COUNTS))  # fmt: skip
MOES = st.builds(
    MoE, experts=st.integers(8, 512), top_k=st.integers(1, 8), expert_width=COUNTS, shared_width=COUNTS,
    first_dense=st.integers(0, 5), every=st.integers(1, 4),
)  # fmt: skip
MODELS = st.builds(
    Model, name=st.just("x"), title=st.just("x"), hidden=COUNTS, layers=st.integers(2, 20), vocab=COUNTS,
    attention=GQAS | MLAS, ffn_width=COUNTS, gated=st.booleans(), moe=st.none() | MOES, mtp_depth=st.integers(0, 3),
    norms_per_layer=st.sampled_from((2, 4)), linear_bias=st.booleans(), tied_embeddings=st.booleans(),
    max_seq_len=COUNTS,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.data(), MODELS)
def test_any_model_written_in_any_spelling_is_read_back(data: st.DataObject, model: Model) -> None:
    fields = {name: getattr(model, name) for name in ("hidden", "layers", "vocab", "ffn_width", "mtp_depth")}
    fields |= {name: getattr(model, name) for name in ("linear_bias", "tied_embeddings", "max_seq_len")}
    parts = [("attention", model.attention, set(type(model.attention).__slots__) - {"kind"})]
    config: dict[str, Any] = {"model_type": "no_such"}
    if model.moe is not None:
        sparse = [kind is Kind.SPARSE for kind in decoder_kinds(model)]
        assume(sum(sparse) > 1)  # one sparse layer can be written with any `every`
        parts.append(("moe", model.moe, {"experts", "top_k", "expert_width", "shared_width"}))
        config["moe_layer_freq"] = [int(flag) for flag in sparse]
    for part, value, names in parts:
        fields |= {f"{part}.{name}": getattr(value, name) for name in sorted(names)}
    fields |= {"sandwich": model.norms_per_layer == 4, "activation": "silu" if model.gated else "gelu"}
    config |= {data.draw(st.sampled_from(UNSHARED[name])): value for name, value in fields.items()}
    assert read_config(config, "x.json").model == model


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
TOUCHED = st.sampled_from(sorted({*OWNER, *PATTERNS, *NESTS, "layer_types", "widening_factor", "expansion_ratio"}))


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(FLAT), st.dictionaries(TOUCHED, JSON, min_size=1, max_size=3))
@example(FLAT[0], {"moe_layer_freq": float("inf")})
def test_nonsense_is_a_spec_error_or_a_model(name: str, nonsense: dict[str, Any]) -> None:
    found = outcome(fixture(name) | nonsense)
    assert isinstance(found, Imported) or all(fault.path or fault.problem for fault in found)

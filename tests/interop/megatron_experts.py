"""Lines of Megatron-Core (0.16.1) that have storages saved in a sparse layer: router, dispatcher, experts."""

from __future__ import annotations

from tests.interop.megatron_places import DISCARDED, SAVED, fused_swiglu, linear, rest, swiglu
from tests.interop.places import Place

ROUTER, EXPERTS, LOCAL, SHARED = "mlp.router", "mlp.experts", "mlp.experts.local_experts.*", "mlp.shared_experts"
PRODUCTS = "Products.apply("
"""The stand-in for the grouped products."""

MOE_INPUT = Place(row="moe input", module=ROUTER, line="RouterGatingLinearFunction.apply(")
SOFTMAX_ROUTER = (
    MOE_INPUT,
    rest(ROUTER, "chosen experts", "torch.topk(scores", "int64", lambda z: 8 * z.T * z.k),
    # of the chosen only, in fp32
    rest(ROUTER, "routing weights", "probs = torch.softmax(scores", "float32", lambda z: 4 * z.T * z.k),
)
BALANCING_LOSS = (
    rest(ROUTER, "balancing loss", "scores = torch.softmax(logits", "float32", lambda z: 4 * z.T * z.E),
    rest(ROUTER, "balancing loss", "aux_loss = torch.sum(", "int64", lambda z: 8 * z.E),
    rest(ROUTER, "balancing loss", "MoEAuxLossAutoScaler.apply(", "float32", lambda _: 4),
)
SIGMOID_ROUTER = (
    MOE_INPUT,
    rest(ROUTER, "scores of the router", "torch.sigmoid(logits", "float32", lambda z: 4 * z.T * z.E),
    rest(ROUTER, "scores of the router", "torch.gather(scores", "bfloat16", lambda z: 2 * z.T * z.E),
    rest(ROUTER, "chosen experts", "torch.gather(scores", "int64", lambda z: 8 * z.T * z.k),
    rest(ROUTER, "routing weights", "probs = scores / (", "bfloat16", lambda z: 2 * z.T * (z.k + 1)),
)


def dispatcher(kind: str, line: str = "permuted_probs = probs.T.contiguous()") -> tuple[Place, ...]:
    """The weights of all experts and which are chosen, a byte each, and the tokens of the copies; ours: 8 bytes for
    every token and expert."""
    wide = 2 if kind == "float32" else 0
    return (
        Place(row="router probabilities", module="mlp", line=line, dtype=kind, more=lambda z: wide * z.T * z.E),
        Place(row="row-id map", module="mlp", line=line, dtype="bool", more=lambda z: (1 - 8) * z.T * z.E),
        Place(row="row-id map", module="mlp", line="output_tokens.scatter_add_(", more=lambda z: 8 * z.T * z.k),
    )


def weights(kind: str, module: str, line: str) -> Place:
    """Routing weights of the copies."""
    return rest(
        module, "routing weights", line, kind, lambda z: (4 if kind == "float32" else 2) * z.T * z.k, lambda _: (1,)
    )


def unweighted(module: str, line: str) -> Place:
    """The activation before it is multiplied by the routing weights: a factor of its own where lines run."""
    return rest(
        module, "activation before its weights", line, "bfloat16", lambda z: 2 * z.T * z.k * z.f_e, lambda z: (z.f_e,)
    )


PERMUTED = linear("permuted tokens", f"{LOCAL}.linear_fc1")


def sequential(kind: str) -> tuple[Place, ...]:
    """Experts one after the other, as their lines run."""
    weigh = "intermediate_parallel * per_token_scale"
    return (
        PERMUTED,
        *swiglu(LOCAL, "expert fc1 output", "expert activation", lambda z: z.T * z.k * z.f_e),
        unweighted(LOCAL, weigh),
        weights(kind, LOCAL, weigh),
    )


def fused_sequential(kind: str) -> tuple[Place, ...]:
    """The same with one kernel for activation and weights."""
    kernel = "WeightedSwiGLUFunction.apply("
    return (
        PERMUTED,
        Place(row="expert fc1 output", module=LOCAL, line=kernel, tail=lambda z: (2 * z.f_e,)),
        weights(kind, LOCAL, kernel),
        linear("expert activation output", f"{LOCAL}.linear_fc2"),
    )


GROUPS = (
    Place(row="permuted tokens", module=EXPERTS, line=PRODUCTS, tail=lambda z: (z.h,)),
    rest(EXPERTS, "sizes of the groups", PRODUCTS, "int64", lambda z: 8 * z.E),
)
GROUPED = (
    *GROUPS,
    Place(row="expert fc1 output+expert activation, gate", module=EXPERTS,
          line="self.config.activation_func(x[0]) * x[1]"),
    unweighted(EXPERTS, "res = self.activation_func(x) * probs"),
    weights("bfloat16", EXPERTS, "res = self.activation_func(x) * probs"),
    Place(row="expert activation output", module=EXPERTS, line=PRODUCTS, tail=lambda z: (z.f_e,)),
)  # fmt: skip
ACTIVATION_REBUILT = (
    *GROUPS,
    Place(row="expert fc1 output", module=EXPERTS, line=DISCARDED, tail=lambda z: (2 * z.f_e,)),
    weights("bfloat16", EXPERTS, DISCARDED),
)
SHARED_EXPERTS = swiglu(SHARED, "shared fc1 output", "shared activation", lambda z: z.T * z.f_e)
FUSED_SHARED_EXPERTS = fused_swiglu(SHARED, "shared fc1 output", "shared activation")
MOE_REBUILT = (Place(row="moe input", module="mlp", line=SAVED),)

"""The cluster: one device and the levels of the network, in SI units. One direction per bandwidth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from autodeploy.spec.checks import AtLeastOne, Count, Frac, LostFrac, Natural, NotNegative, Positive


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Matrix products in a number format below 16 bits."""

    peak_flop_per_s: Positive
    """Dense peak, as the vendor specifies it."""
    max_frac: Frac
    """Share of the peak that an endless matrix product reaches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One accelerator: what its engines reach, and what its memory leaves to the job."""

    name: str
    peak_flop_per_s: Positive
    """Dense bf16 peak, as the vendor specifies it."""
    matmul_max_frac: Frac
    """Share of the peak that an endless matrix product reaches."""
    fp8: Rate | None = None
    """None: the device has no fp8 products."""
    nvfp4: Rate | None = None
    matmul_cores: Count
    vector_cores: bool = False
    """Vector chains have cores of their own beside those of products."""
    exchange_cores: Natural = 0
    """Of these, what an all-to-all takes while it runs beside compute."""
    tile_m: Count
    tile_n: Count
    tile_overhead_s: Positive
    """Prologue and epilogue of one output tile."""
    attention_forward_frac: Frac
    attention_backward_frac: Frac
    """Share of the bf16 peak that its best fused attention kernel reaches on endless sequences."""
    attention_half_len: Natural = 0
    """Tokens of a document at which that kernel reaches half of it."""
    attention_full_width: Natural = 0
    """Head size from which on it reaches that rate; narrower heads reach a proportional share."""
    flash2_frac: Frac = 1.0
    """Rate of FlashAttention-2 over the best kernel's."""
    flash1_frac: Frac = 1.0
    """Rate of FlashAttention-1 and its Triton form over the best kernel's."""
    hbm_bytes: Positive
    """What the runtime reports, before its own context."""
    context_bytes: Positive
    hbm_bytes_per_s: Positive
    hbm_max_frac: Frac
    kernel_gap_s: Positive
    """Device idle between two kernels of one stream."""
    host_bytes_per_s: NotNegative = 0.0
    """To and from the host, each direction, while its neighbours do the same; 0: not stated, so nothing is moved."""
    host_bytes: NotNegative = 0.0
    """Its share of the memory of its server; 0: not stated."""
    spread_frac: LostFrac = 0.0
    """Standard deviation of the speed of equal devices of one cluster."""
    issue_s: Positive
    """Host time to launch one kernel: a floor under every layer."""
    stall_s: NotNegative = 0.0
    """Device idle where the host waits for a value from it before it can go on."""
    pinned_issue_s: NotNegative = 0.0
    """As `issue_s`, where the threads of the host have cores of their own; 0: not stated, so the same."""
    pinned_stall_s: NotNegative = 0.0
    """As `stall_s`, likewise."""

    def __post_init__(self) -> None:
        """Refuse a device that its context fills."""
        if self.context_bytes >= self.hbm_bytes:
            raise ValueError("the context takes all of the memory")
        if self.exchange_cores >= self.matmul_cores:
            raise ValueError("an all-to-all takes all cores")

    @property
    def exchange_frac(self) -> float:
        """Share of its cores that an all-to-all beside compute takes."""
        return self.exchange_cores / self.matmul_cores

    @property
    def usable_bytes(self) -> float:
        """Device memory that the job may fill."""
        return self.hbm_bytes - self.context_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One level of the network: `size` ranks that reach each other over it."""

    name: str
    size: Natural
    """Ranks below one domain of this level; 0 means all of the cluster."""
    topology: Literal["switch", "mesh"]
    """A mesh of m ranks uses m - 1 links of `link_bytes_per_s` each; a switch one port whatever m."""
    link_bytes_per_s: Positive
    """Nominal, per device and direction (mesh: per link and direction)."""
    link_max_frac: Frac
    """Share of nominal that large messages reach."""
    latency_s: Positive
    """Per doubling of the ranks in a collective; once for a point-to-point message."""
    leaf_size: Natural = 0
    """Ranks below one leaf of the fabric, between which it is not blocking; 0: nowhere is it."""
    oversubscription: AtLeastOne = 1.0
    """What leaves a leaf shares a port's bandwidth with so many, less one, others."""
    ramp_s_per_sqrt_byte: NotNegative = 0.0
    """Collectives of middle size are slower than latency and rate say: c in t = a + c sqrt(S) + S / B."""

    @property
    def effective_bytes_per_s(self) -> float:
        """What a large message sees."""
        return self.link_bytes_per_s * self.link_max_frac


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A kind of machine, any number of it."""

    name: str
    title: str
    device: Device
    node: Level
    """Devices of one server: they are bought, booked and named together."""
    fabric: Level
    supernode: Level | None = None
    """Servers joined by the same fast links (CloudMatrix384, NVL72), where there are such."""
    pipelined_collectives: bool
    """True where a collective over two levels streams through both at once; False where the steps add."""
    communicator_bytes: Positive
    """Device memory that one communicator (process group) takes."""
    fragmentation_frac: LostFrac
    """Share of the allocated memory lost to the allocator."""
    sources: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Refuse a node of no devices: only the fabric's size is open."""
        if not self.node.size:
            raise ValueError("node.size must be at least 1, not 0")

    @property
    def inner(self) -> Level:
        """The level below the fabric: the supernode where there is one, else the node."""
        return self.supernode or self.node

"""What rules ask about apart from the plan, and the forms of a predicate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autodeploy.numeric import Num
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.job import Job
from autodeploy.spec.layout import Layout
from autodeploy.spec.model import Model
from autodeploy.spec.plan import Plan, PlanLike


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What the rules ask about, apart from the plan."""

    model: Model
    job: Job
    cluster: Cluster
    devices: int

    @property
    def mtp(self) -> int:
        """MTP modules that are trained."""
        return self.model.mtp_depth if self.job.mtp else 0


Predicate = Callable[[Question, PlanLike], Num]
LayoutPredicate = Callable[[Question, Plan, Layout], bool]

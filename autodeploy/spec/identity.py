"""One name for one arranged plan: the same plan on the same arrangement has the same id everywhere."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from autodeploy.spec.arrangement import Arrangement
from autodeploy.spec.plan import Plan


def plan_id(plan: Plan, arrangement: Arrangement) -> str:
    """12 hex digits of a hash over plan and arrangement."""
    text = json.dumps([asdict(plan), asdict(arrangement)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]

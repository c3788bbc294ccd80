"""Entries that joined the catalog later, against what their authors and vendors publish."""

from __future__ import annotations

import pytest

from autodeploy.analysis.inventory import inventory_of, kind_counts, one_token
from autodeploy.analysis.readings import PLAIN
from autodeploy.catalog.lookup import load
from autodeploy.legality.rules import RULES
from autodeploy.numeric import total
from autodeploy.spec.cluster import Cluster
from autodeploy.spec.model import MLA, Model
from autodeploy.spec.target import Target
from autodeploy.units import GIB, TERA

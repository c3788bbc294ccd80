"""`autodeploy layout`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from autodeploy.balance.layouts import trained_modules
from autodeploy.cli.exits import DONE, NOTHING_FITS, say
from autodeploy.cli.plans import asked_plan
from autodeploy.formats.document import plan_short
from autodeploy.report.explain import chosen_words
from autodeploy.report.layouts import Row, layouts_facts, layouts_table, naive_of
from autodeploy.report.tables import console
from autodeploy.search.evaluate import evaluate
from autodeploy.search.nearest import miss_of
from autodeploy.search.solve import ruled_layouts, solve_layouts
from autodeploy.spec.plan import Plan
from autodeploy.spec.space import Space

WITH_MTP = {
    "together": "MTP and head with layers", "apart": "MTP and head each alone", "after": "MTP with head",
    "head": "head alone",
}  # fmt: skip
WITHOUT_MTP = {"together": "head with layers", "apart": "head alone", "after": "head alone", "head": "head alone"}


def run_layout(argument: str, *, space_file: Path | None, gbs: int | None, as_json: bool) -> int:
    """Solve where the layers of a plan go; returns the exit code."""
    space, choice = asked_plan(argument, space_file, gbs)
    if choice.chosen:
        say(chosen_words(choice.named()))
    rows = _rows(space, choice.plan)
    naive = naive_of(rows)
    ranked = sorted(rows, key=lambda row: (not row.result.fits, row.result.step_time_s))
    if as_json:
        sys.stdout.write(json.dumps(layouts_facts(ranked, naive), indent=2) + "\n")
    else:
        console().print(layouts_table(f"Layouts of {plan_short(space, choice.plan)}", ranked, naive))
    best = ranked[0].result
    if best.fits:
        return DONE
    say("no layout fits: " + miss_of(space, best).text())
    return NOTHING_FITS


def _rows(space: Space, plan: Plan) -> list[Row]:
    """The layout asked for, those of the rules, and the solved ones; equal layouts once, under their first name."""
    named = {"asked": plan} if plan.layout != "auto" else {}
    named |= {f"rule {rule}": ruled for rule, ruled in ruled_layouts(space, plan).items()}
    words = WITH_MTP if trained_modules(space.model, space.job) else WITHOUT_MTP
    named |= {f"solved, {words[found.ends]}": found.plan for found in solve_layouts(space, plan)}
    rows: dict[str, Row] = {}
    for name, each in named.items():
        result = evaluate(space, each)
        known = rows.get(result.arrangement.layout)
        rows[result.arrangement.layout] = Row(names=(*(known.names if known else ()), name), result=result)
    return list(rows.values())

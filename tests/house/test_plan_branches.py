"""In `analysis` and `cost` no Python branch depends on the plan: a column must take the same path as a number.

A value depends on the plan if it comes from a parameter of a plan-like type. Types are read off the annotations:
a class whose fields all depend on the plan is such a type, one with some such fields carries them (`op.m` depends
on the plan, `op.engine` does not). Allowed: `is`, `isinstance`, `is_column` and what they guard in the same
condition, whether a list is empty, and lines that end in `# static:` and a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house.source import FUNCTIONS, AnyFunction, Source, functions, parameters, source_of, sources

CLEAN, CARRIER, PLAN = range(3)
PLAN_TYPES = {"Num", "Plan", "PlanTable", "PlanLike", "LayerLike", "LayerKey"}
GUARDS = {"isinstance", "is_column", "len", "id", "type"}
SCALAR_ONLY = {"min", "max", "int", "round", "float", "bool", "range", "any", "all", "sorted"}
LISTS = re.compile(r"(Sequence|list|tuple|Mapping|dict)\b")
DISPLAYS = (ast.List, ast.ListComp, ast.Tuple, ast.Dict, ast.DictComp)
WAIVER = "# static:"


def _text(annotation: ast.expr | None) -> str:
    return ast.unparse(annotation) if annotation else ""


class Types:
    """What the annotations of some modules say: levels of classes and functions, fields that depend on the plan."""

    def __init__(self, modules: tuple[Source, ...]) -> None:
        self.levels = dict.fromkeys(PLAN_TYPES, PLAN)
        self.fields: set[str] = set()
        self.lists: set[str] = set()
        nodes = [node for source in modules for node in ast.walk(source.tree)]
        classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        for _ in range(4):  # classes hold classes
            for name, node in classes.items():
                held = [f for f in node.body if isinstance(f, ast.AnnAssign)]
                mine = {f.target.id: self.level(f.annotation) for f in held}
                self.lists |= {f.target.id for f in held if LISTS.match(_text(f.annotation))}
                self.fields |= {field for field, level in mine.items() if level == PLAN}
                worst = PLAN if mine and min(mine.values()) == PLAN else min(max(mine.values(), default=0), CARRIER)
                self.levels[name] = max(worst, self.levels.get(name, CLEAN))
        self.returns = {node.name: self.level(node.returns) for node in nodes if isinstance(node, FUNCTIONS)}

    def level(self, annotation: ast.expr | None) -> int:
        """The level of a parameter, field or result of this type."""
        words = re.findall(r"\w+", _text(annotation))
        return max((self.levels.get(word, CLEAN) for word in words), default=CLEAN)


class Branches:
    """The branches of one function that depend on the plan."""

    def __init__(self, types: Types, function: AnyFunction, method_of: str | None) -> None:
        self.types, self.function, self.owner = types, function, method_of or ""
        self.names = {each.arg: types.level(each.annotation) for each in parameters(function)}
        self.lists = {each.arg for each in parameters(function) if LISTS.match(_text(each.annotation))}
        self.names["self"] = types.levels.get(self.owner, CLEAN)
        for _ in range(3):  # until assignments settle
            for node in ast.walk(function):
                self._follow(node)

    def _follow(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value:
            pairs = [(node.target, node.value)]
        elif isinstance(node, (ast.For, ast.comprehension)):
            pairs = [(node.target, node.iter)]
        else:
            return
        for target, value in pairs:
            for name in (each for each in ast.walk(target) if isinstance(each, ast.Name) and each.id != "self"):
                self.names[name.id] = max(self.names.get(name.id, CLEAN), self.level(value))
                self.lists |= {name.id} if target is name and isinstance(value, DISPLAYS) else set()
            if isinstance(target, ast.Attribute) and self.level(value) == PLAN:
                self.types.fields.add(target.attr)
                self.types.levels[self.owner] = max(self.types.levels.get(self.owner, CLEAN), CARRIER)

    def level(self, node: ast.AST) -> int:
        """How an expression depends on the plan."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, CLEAN)
        if isinstance(node, ast.Attribute):
            base = self.level(node.value)
            return PLAN if base == CARRIER and node.attr in self.types.fields else base
        if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return CLEAN
        below = max((self.level(child) for child in ast.iter_child_nodes(node)), default=CLEAN)
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            return CLEAN if name in GUARDS else min(below, 1) and self.types.returns.get(name, below)
        return below

    def found(self) -> Iterator[ast.AST]:
        """Every branch that depends on the plan."""
        guarded = {id(inner) for node in ast.walk(self.function) if _is_guarded(node) for inner in ast.walk(node)}
        for node in ast.walk(self.function):
            asked = [] if id(node) in guarded else _decides(node)
            if any(self.level(each) == PLAN and not self._is_list(each) for each in asked):
                yield node

    def _is_list(self, node: ast.expr) -> bool:
        """How many there are does not depend on the plan."""
        if isinstance(node, ast.UnaryOp):
            return self._is_list(node.operand)
        return node.id in self.lists if isinstance(node, ast.Name) else getattr(node, "attr", "") in self.types.lists


def _is_guarded(node: ast.AST) -> bool:
    """`is_column(x) or x > 0`: the rest is reached with numbers only."""
    if not isinstance(node, ast.BoolOp):
        return False
    first = node.values[0].operand if isinstance(node.values[0], ast.UnaryOp) else node.values[0]
    return isinstance(first, ast.Call) and getattr(first.func, "id", "") in ("is_column", "isinstance")


def _decides(node: ast.AST) -> list[ast.expr]:
    """The expressions of which Python itself asks the truth, or one number."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert, ast.comprehension)):
        tests = node.ifs if isinstance(node, ast.comprehension) else [node.test]
        return [test for test in tests if not _is_guarded(test)]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call):
        of_math = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "math"
        return node.args if of_math or getattr(node.func, "id", "") in SCALAR_ONLY else []
    return []


def branches(modules: tuple[Source, ...]) -> list[str]:
    """`module:line code` of every plan-dependent branch without a waiver."""
    types = Types(modules)
    owner = {id(f): c.name for s in modules for c in ast.walk(s.tree) if isinstance(c, ast.ClassDef) for f in c.body}
    for _ in range(2):  # the first time finds what `self` holds
        read = [(s, Branches(types, each, owner.get(id(each)))) for s in modules for each in functions(s)]
    out = []
    for source, reader in read:
        lines = source.text.splitlines()
        for node in reader.found():
            line = getattr(node, "lineno", None) or node.target.lineno
            if WAIVER not in lines[line - 1]:
                out.append(f"{source.module}:{line} {ast.unparse(node).splitlines()[0]}")
    return out


def test_no_branch_depends_on_the_plan() -> None:
    modules = tuple(source for source in sources() if source.package in ("analysis", "cost"))
    assert branches(modules) == []


SOUND = """
class Op:
    engine: Engine
    m: Num

def sound(model: Model, plan: PlanLike, op: Op, overlap: Overlap, count: Num) -> Num:
    if model.moe and op.engine is Engine.VECTOR and op.engine == overlap:
        return where(plan.tp > 1, plan.tp, 1.0)
    if is_column(count) or count > 0.0:
        return maximum(count, plan.tp)
    if plan.words:  # static: the words of a table, not its rows
        return 0.0
    loads = [plan.tp, op.m]
    if not loads:
        return 0.0
    return max(model.layers, 1) * count
"""

FAULTY = """
def halved(p: PlanLike) -> Num:
    return p.tp / 2

class Traffic:
    def __init__(self, plan: PlanLike) -> None:
        self.hier = plan.dispatch == 1

    def faulty(self, plan: PlanLike, t: Num, op: Op) -> Num:
        pass
"""


@pytest.mark.parametrize(
    "line",
    [
        "if plan.tp > 1: pass", "while plan.dp: pass", "x = 1 if plan.sp else 2", "x = plan.tp > 1 and 2",
        "x = not plan.sp", "x = 1 < plan.tp < 8", "x = min(plan.tp, 8)", "x = int(plan.tp)", "x = round(t.part)",
        "x = math.ceil(t.whole / 2)", "y = 2 * plan.tp\n        z, = (y,)\n        if z > 1: pass",
        "x = [1 for r in (1, 2) if plan.tp > r]", "if op.m > 1: pass", "for o in [op]:\n            if o.m: pass",
        "assert plan.tp > 1", "a = [plan.tp]\n        if a[0]: pass", "if halved(plan) > 1: pass", "if self.hier: pass",
    ],
)  # fmt: skip
def test_a_planted_branch_is_found(line: str) -> None:
    assert branches((source_of("autodeploy.cost.x", SOUND + FAULTY + f"        {line}\n"),)) != []
    assert branches((source_of("autodeploy.cost.x", SOUND + FAULTY),)) == []

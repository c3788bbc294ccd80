"""How far a token reaches: windows of attention, positions as a bias, and the nodes that its experts may lie on."""

from __future__ import annotations

from autodeploy.formats.huggingface_sheet import Sheet

SLIDING = "sliding_attention"


def window_of(sheet: Sheet) -> int:
    """Keys that a windowed layer sees; 0 where no layer has a window."""
    data = sheet.level.data
    window = data.get("sliding_window")
    if data.get("use_sliding_window") is False or isinstance(window, bool) or not isinstance(window, int):
        return 0
    return max(window, 0) if window_frac_of(sheet) > 0.0 else 0


def window_frac_of(sheet: Sheet) -> float:
    """Share of the layers that are windowed: listed, every n-th one full, or what the class does; else all."""
    data = sheet.level.data
    listed, pattern = data.get("layer_types"), data.get("sliding_window_pattern")
    if isinstance(listed, list) and listed:
        return listed.count(SLIDING) / len(listed)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 1:
        return (pattern - 1) / pattern
    share = sheet.family.values.get("window_frac", 1.0)
    if "window_frac" in sheet.family.values:
        sheet.assumed.append(f"attention: a window in {share:.0%} of the layers, as the class has it")
    return float(share)


def is_biased(sheet: Sheet) -> bool:
    """Whether positions are a bias on the scores (ALiBi)."""
    asked = sheet.level.data.get("alibi", sheet.family.values.get("alibi", False))
    return asked is True


def node_limit_of(sheet: Sheet) -> int:
    """Groups of experts that a token may choose from, one group a node (DeepSeek); 0 where it may use all."""
    groups, chosen = sheet.level.data.get("n_group"), sheet.level.data.get("topk_group")
    whole = isinstance(groups, int) and isinstance(chosen, int) and not isinstance(chosen, bool)
    return chosen if whole and isinstance(chosen, int) and 0 < chosen < (groups or 0) else 0

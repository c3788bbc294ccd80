"""Many searches as one matrix: cells in parallel, resumed by content, gated against an earlier run."""

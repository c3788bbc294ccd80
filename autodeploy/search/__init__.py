"""Which plan: enumerate, arrange, screen, simulate, prove, rank."""

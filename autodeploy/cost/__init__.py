"""What it costs on a machine: seconds and bytes per layer, per slot, per stage. Takes no schedule."""

"""How to ask: thin commands. Each parses, loads, calls one library function and hands the result to `report`."""

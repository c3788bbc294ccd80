"""What must be done: the op inventory of every kind of layer, and its readings. Never sees a machine."""

"""What to choose once the plan stands: layout by rule, recompute until it fits. Small and exact."""

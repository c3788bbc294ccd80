"""What may run: rules as data with vectorised predicates, an id and a reason each."""

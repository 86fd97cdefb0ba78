"""Films that are ordered, and rendered on a GPU."""

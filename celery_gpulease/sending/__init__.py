"""A task comes in: the task class, the router, and the seam where every message is held."""

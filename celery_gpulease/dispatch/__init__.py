"""A lease vanished: the GPU's own worker listens, and claims the next task."""

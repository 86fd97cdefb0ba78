"""Programs that are no tasks, under a lease: `reserve`, and `gpulease run -- CMD`."""

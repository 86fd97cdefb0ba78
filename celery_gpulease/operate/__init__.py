"""The people who run the GPUs see and steer everything."""

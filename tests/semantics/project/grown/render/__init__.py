"""Heavy tasks."""

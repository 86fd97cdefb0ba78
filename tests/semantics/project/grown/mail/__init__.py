"""Plain tasks."""

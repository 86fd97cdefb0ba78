"""Printed, never asserted: every figure beside plain Celery's in the same run."""

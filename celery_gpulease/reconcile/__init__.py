"""Slow and independent: compares Redis with what the workers really do, and corrects it."""

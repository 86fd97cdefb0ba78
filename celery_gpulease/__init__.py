"""Gives each GPU to one Celery task at a time, by leases in Redis."""

__version__ = "0.1.0"

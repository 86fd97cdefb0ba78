"""`celery -A proj gpulease …`: what is true of the GPUs, and what their people may change."""

from __future__ import annotations

from celery_gpulease.operate.cli import doctor, looking, removing, running, steering, telling
from celery_gpulease.operate.cli.group import gpulease
from celery_gpulease.operate.exporter import exporter

__all__ = ["doctor", "gpulease", "looking", "removing", "running", "steering", "telling"]

gpulease.add_command(exporter)

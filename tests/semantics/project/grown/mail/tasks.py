"""Tasks that need no GPU."""

from celery import shared_task

from grown.app import app


@app.task
def send(text):
    """A plain one."""
    return f"sent {text}"


@shared_task
def remember(value):
    """A shared one."""
    return value

"""Tasks that need no GPU."""

from celery import current_app, shared_task


@current_app.task
def send(text):
    """A plain one."""
    return f"sent {text}"


@shared_task
def remember(value):
    """A shared one."""
    return value

"""`celery -A proj gpulease exporter`: the whole pool's metrics, until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import suppress
from typing import Any, Final

import click

from celery_gpulease.exceptions import GPULeaseError, LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.operate.watching import Watch
from celery_gpulease.prometheus import Server

PORT: Final = 9822
PORTS: Final = (1, 65535)


@click.command()
@click.option("--port", type=click.IntRange(*PORTS), default=PORT, show_default=True, help="Where Prometheus asks.")
@click.option("--address", default="", help="Of the interface to listen on, 127.0.0.1 say. [default: all of them]")
@click.pass_context
def exporter(context: click.Context, port: int, address: str) -> None:
    """Prometheus metrics of all GPUs and pools, at http://ADDRESS:PORT/metrics, until TERM or Ctrl-C."""
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    try:
        watch = Watch(installation(context.obj.app).ledger)
        server = _serve(watch, address, port)
        with suppress(LedgerUnavailable):  # it waits for that, and says so; a right that is missing is another matter
            watch.turn()
    except GPULeaseError as error:
        raise click.ClickException(f"{type(error).__name__}: {error}") from error
    context.obj.app.log.setup(loglevel=logging.WARNING, redirect_stdouts=False)  # else Celery keeps all of it to itself
    watch.start()
    click.echo(f"metrics of all GPUs and pools: {_where(address, port)}")
    is_over.wait()
    watch.stop()
    server.close()


def _where(address: str, port: int) -> str:
    if not address:
        return f"http://0.0.0.0:{port}/metrics (on all interfaces; --address names one)"
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/metrics"


def _serve(watch: Watch, address: str, port: int) -> Any:
    try:
        return Server(watch.readings, address, port)
    except OSError as error:
        message = f"port {port} of {address or 'all interfaces'} cannot be had: {error.strerror}; --port names another"
        raise click.ClickException(message) from error

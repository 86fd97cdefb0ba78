"""A server, workers and a sender for one round."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from celery_gpulease.embedded import EmbeddedServer

WORKERS = 4
HERE = Path(__file__).resolve().parent


@contextmanager
def lab(variant, workers=WORKERS):
    """Yields a function that runs `code` in a sender's process and returns what it prints."""
    with EmbeddedServer() as server:
        env = {**os.environ, "BENCH_URL": server.url, "BENCH_VARIANT": variant, "GPULEASE_HOST": "bench"}
        started = [_worker(env, number, variant) for number in range(workers)]
        try:
            for process in started:
                _wait_ready(process)
            yield lambda code: _send(env, code)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.communicate(timeout=30)


def _worker(env, number, variant):
    options = ["-c", "1", "-n", f"w{number}@bench"] if variant == "plain" else ["--gpu", str(number)]
    argv = [sys.executable, "-m", "celery", "-A", "project", "worker", "-l", "INFO", *options]
    return subprocess.Popen(argv, cwd=HERE, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _wait_ready(process):
    for line in process.stderr:
        if " ready." in line:
            break
    else:
        raise RuntimeError(f"a worker ended with {process.wait()}")
    # what it says from now on must not fill the pipe
    subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)


def _send(env, code):
    text = "from project import *\nimport json, time\n" + code
    done = subprocess.run([sys.executable, "-c", text], cwd=HERE, env=env, check=True, capture_output=True, text=True)
    return done.stdout

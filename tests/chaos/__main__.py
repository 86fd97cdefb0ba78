"""`make chaos MINUTES=n SEED=s`: everything breaks, all the time; in the end nothing is lost and nothing ran twice.

The seed fixes what is sent, ordered and broken, and in which order; not when.
"""

import argparse
import faulthandler
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

from celery_gpulease.embedded import EmbeddedServer
from tests.chaos.chaos import Chaos
from tests.chaos.verdict import Verdict
from tests.faults.conftest import world_on
from tests.faults.world import HOST
from tests.proxy import Proxy

#: Redis keeps what it has said, whatever happens to it: what it lost would not be ours to find.
SERVER = ("--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "yes")
#: As README advises: the result backend may fall silent too; and a result that cannot be stored at its moment makes its
#: task FAILURE, and with it those of its chain that Celery has sent already.
CONF = {
    "redis_socket_timeout": 3.0,
    "result_backend_always_retry": True,
    "result_backend_max_sleep_between_retries_ms": 1000,
}


def main():
    """Runs one chaos; exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", default=None, help="by default a new one, which is printed")
    options = parser.parse_args()
    seed = options.seed or str(random.SystemRandom().randrange(1_000_000))
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    print(f"make chaos MINUTES={options.minutes:g} SEED={seed}; logs in {folder} until all is well", flush=True)
    os.environ["GPULEASE_HOST"] = HOST
    faulthandler.register(signal.SIGUSR1)  # where does it hang?
    with (
        EmbeddedServer(*SERVER) as server,
        Proxy(server.port) as proxy,
        world_on(proxy.url, folder, server, proxy, **CONF) as world,
    ):
        wrongs = judge(Chaos(seed, world), options.minutes * 60)
    if wrongs:
        raise SystemExit(1)
    shutil.rmtree(folder)


def judge(chaos, seconds):
    """Runs it, prints what happened, and answers what is wrong."""
    began = time.time()
    chaos.run(seconds)
    verdict = Verdict(chaos)
    wrongs = [f"{actor.name} ended: {actor.error!r}" for actor in chaos.actors if actor.error]
    wrongs += verdict.wrongs()
    print_counts(verdict.counts(), "tasks: ")
    print_counts(chaos.counts)
    print(f"over after {time.time() - began:.0f} s")
    tell_idle("longest idle while somebody waited", chaos.idle.longest)
    tell_idle("the same, without the time of faults", chaos.idle.longest_untroubled)
    chaos.close()
    print("\n\n".join([f"{len(wrongs)} WRONG", *wrongs]) if wrongs else "all is well", flush=True)
    return wrongs


def print_counts(counts, before=""):
    """One line each."""
    for what, number in sorted(counts.items()):
        print(f"{number:6} {before}{what}")


def tell_idle(what, longest):
    """And which GPU it was, since when: the log has that moment."""
    seconds, gpu, since = longest
    print(f"{what}: {seconds:.1f} s" + (f" (GPU {gpu}, from {since:.3f})" if gpu else ""))


if __name__ == "__main__":
    main()

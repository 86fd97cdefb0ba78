"""`make chaos MINUTES=n SEED=s`: everything breaks, all the time; in the end nothing is lost and nothing ran twice.

The seed fixes what is sent, ordered and broken, in which order and on which servers; not when.
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

from tests.chaos.breaker import left_out
from tests.chaos.chaos import Chaos
from tests.chaos.ground import BROKERS, drawn, standing
from tests.chaos.verdict import Verdict
from tests.faults.world import HOST


def main():
    """Runs one chaos; exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", default=None, help="by default a new one, which is printed")
    parser.add_argument("--broker", default=None, choices=BROKERS, help="by default the seed draws it")
    options = parser.parse_args()
    seed = options.seed or str(random.SystemRandom().randrange(1_000_000))
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    ground, missing = drawn(seed, options.broker)
    again = f"make chaos MINUTES={options.minutes:g} SEED={seed}" + (f" BROKER={options.broker}" * bool(options.broker))
    print(f"{again}: {ground}; logs in {folder} until all is well", flush=True)
    os.environ["GPULEASE_HOST"] = HOST
    faulthandler.register(signal.SIGUSR1)  # where does it hang?
    with standing(ground, folder) as world:
        for words in (*missing, *left_out(world)):
            print(words, flush=True)
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

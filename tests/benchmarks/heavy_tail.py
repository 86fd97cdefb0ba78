"""Heavy-tailed jobs that sleep, on real workers: who waits how long under which policy. The policies take turns."""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import redis

from tests.benchmarks import simulation
from tests.benchmarks.line_project import ASSIGNED, RUNS, VARIANTS, make
from tests.benchmarks.machine import usual_server
from tests.benchmarks.workload import DISTRIBUTIONS, LOADS, Run, jobs, judge, table
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
GPUS = simulation.GPUS
#: Seconds that a job sleeps on average: so few jobs a second that two cores are not what they wait for.
MEAN = 0.15
#: Seconds that workers may take to be ready, and jobs to end.
LONGEST = 180.0
#: Policy → the workers that serve it, and how the sender chooses one where each has a queue of its own.
POLICIES = {
    "round robin": ("own", simulation.round_robin),
    "random": ("own", simulation.at_random),
    "least connections": ("own", simulation.least_connections),
    "Celery, prefetch 4 (its default)": ("default", None),
    "Celery, prefetch 1": ("one", None),
    "Celery, prefetch 1, acks_late": ("late", None),
    "celery_gpulease": ("ours", None),
}
QUICK = ("round robin", "Celery, prefetch 1, acks_late", "celery_gpulease")
OPTIMUM = "optimum of one line (M/G/8, computed)"


def measure(quick):
    """A table for each distribution."""
    number, loads, policies = (40, LOADS[1:2], QUICK) if quick else (200, LOADS, tuple(POLICIES))
    variants = dict.fromkeys(POLICIES[policy][0] for policy in policies)
    with ExitStack() as stack:
        site = Site(stack.enter_context(usual_server()).url)
        for variant in variants:
            stack.enter_context(site.workers(variant))
            site.warm_up(variant)
        psutil.cpu_percent()
        found = {name: verdicts(site, jobs_of, policies, loads) for name, jobs_of in _all_jobs(number).items()}
        busy = psutil.cpu_percent()
        site.client.close()
    title = f"Real workers: waits of jobs of {MEAN * 1000:.0f} ms"
    rest = f"on {GPUS} GPUs, {number} jobs each; the machine's cores were {busy:.0f} % busy"
    return [table(f"{title} ({name}) {rest}", one, [*policies, OPTIMUM], "ms", 0.001) for name, one in found.items()]


def _all_jobs(number):
    return {name: partial(jobs, duration, number) for name, duration in DISTRIBUTIONS.items()}


def verdicts(site, jobs_of, policies, loads):
    """(policy, load) → what became of the same jobs."""
    found = {}
    for load in loads:
        arrivals = jobs_of(load, GPUS, MEAN)
        for policy in policies:
            variant, choose = POLICIES[policy]
            found[policy, load] = judge(site.serve(variant, choose, arrivals), GPUS)
        found[OPTIMUM, load] = judge(list(simulation.optimum(arrivals)), GPUS)
    return found


class Site:
    """One server, a sender, and a set of workers for each variant."""

    def __init__(self, url):
        self._url, self.client = url, redis.Redis.from_url(url, decode_responses=True)
        self._jobs = {variant: make(url, variant)[1] for variant in VARIANTS}

    @contextmanager
    def workers(self, variant):
        """Eight, which are ready."""
        env = {**os.environ, "BENCH_URL": self._url, "BENCH_VARIANT": variant, "GPULEASE_HOST": "bench"}
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            logs = [stack.enter_context((Path(folder) / str(gpu)).open("w+")) for gpu in range(GPUS)]
            started = [_worker(env, variant, gpu, log) for gpu, log in enumerate(logs)]
            try:
                for log in logs:
                    wait_until(
                        lambda log=log: " ready." in Path(log.name).read_text(), LONGEST, f"{variant} to be ready"
                    )
                yield
            finally:
                for one in started:
                    one.terminate()
                for one in started:
                    one.wait(30)

    def warm_up(self, variant):
        """Each worker has run a job."""
        choose = simulation.round_robin if variant == "own" else None
        self.serve(variant, choose, [(0.1 * number, 0.2) for number in range(2 * GPUS)])

    def serve(self, variant, choose, arrivals):
        """Sends all at their time, and waits until they have run."""
        self.client.delete(RUNS, ASSIGNED)
        begin = time.monotonic() + 0.2
        for number, (arrival, duration) in enumerate(arrivals):
            time.sleep(max(0.0, begin + arrival - time.monotonic()))
            self._send(variant, choose, number, (begin + arrival, duration))
        wait_until(lambda: self.client.llen(RUNS) == len(arrivals), LONGEST, f"all jobs of {variant} to end")
        return [Run(*json.loads(one)) for one in self.client.lrange(RUNS, 0, -1)]

    def _send(self, variant, choose, number, job):
        options, gpu = {}, 0
        if choose:
            assigned = self.client.hgetall(ASSIGNED) if choose is simulation.least_connections else {}
            gpu = choose(number, [int(assigned.get(str(one), 0)) for one in range(GPUS)])
            self.client.hincrby(ASSIGNED, gpu, 1)
            options = {"queue": f"own.{gpu}"}
        self._jobs[variant].apply_async((*job, gpu), **options)


def _worker(env, variant, gpu, log):
    options = {"own": ["-Q", f"own.{gpu}"], "ours": ["--gpu", str(gpu)]}.get(variant, ["-Q", variant])
    argv = [sys.executable, "-m", "celery", "-A", "tests.benchmarks.line_project", "worker", "-l", "INFO", *options]
    if variant != "ours":
        argv += ["-c", "1", "-n", f"{variant}{gpu}@bench"]
    return subprocess.Popen(
        [*argv, "--without-gossip", "--without-mingle"], cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=log
    )

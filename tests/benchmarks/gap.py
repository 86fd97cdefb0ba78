"""The gap between two jobs on one GPU, with a backlog: end of one to start of the next on the same worker."""

from dataclasses import replace
from itertools import groupby, pairwise

from tests.benchmarks.lab import Setup, alternate, lab, ours, plain, rabbitmq
from tests.benchmarks.table import Table, beside

OTHERS = (
    Setup("RQ", "rq_project", "Listening on", "rq worker --url {url} --path . bench"),
    Setup("Dramatiq", "dramatiq_project", "ready for action", "dramatiq dramatiq_project -p 1 -t 1"),
)


def measure(quick):
    """Four tables: each pool on Redis, and prefork on RabbitMQ."""
    jobs, rounds, fewer = (40, 1, 1) if quick else (200, 5, 3)

    def table(where, setups, rounds):
        title = f"Gap between two jobs on one GPU, {where}: 4 workers, a backlog of {jobs} jobs of 50 ms"
        return beside(title, alternate(setups, rounds, lambda setup: _round(setup, jobs)))

    tables = [table("prefork, Redis", (plain(), ours(), *OTHERS), rounds)]
    tables += [table(f"{pool}, Redis", (plain(pool=pool), ours(pool=pool)), fewer) for pool in ("solo", "threads")]
    with rabbitmq() as url:
        if url is None:
            return [*tables, Table("Gap on RabbitMQ: it is not installed here", ("",), [])]
        setups = [replace(setup, broker=url) for setup in (plain(), ours())]
        return [*tables, table("prefork, RabbitMQ", setups, fewer)]


def _round(setup, jobs):
    with lab(setup) as one:
        one.send("print(json.dumps(run_all(8, 0.01)))")
        return _gaps(one.send(f"print(json.dumps(run_all({jobs}, 0.05)))"))


def _gaps(runs):
    found = []
    for _, one in groupby(sorted(runs), key=lambda run: run[0]):
        in_order = sorted(one, key=lambda run: run[1])
        found += [later[1] - earlier[2] for earlier, later in pairwise(in_order)]
    return found

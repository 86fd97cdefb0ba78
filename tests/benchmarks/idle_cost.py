"""What a pool with nothing to do costs: commands, CPU and memory of each worker, with all of its processes."""

import socket
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psutil

from tests.benchmarks.lab import WORKERS, lab, ours, plain
from tests.benchmarks.table import Table

#: Each has run some before: what is imported for the first task is there.
WARM_UP = "print(json.dumps(run_all(40, 0.05)))"


def measure(quick):
    """For each pool; both variants rest at the same time, on servers of their own."""
    seconds, rounds = (5, 1) if quick else (20, 2)
    columns = ("", "commands a second", "CPU", "memory (PSS)", "beyond plain", "commands, a second each")
    title = f"A worker with nothing to do for {seconds} s, with all of its processes; of {WORKERS} on one server"
    lines = []
    for pool in ("prefork", "solo", "threads"):
        setups = (plain(f"plain Celery, {pool}", pool), ours(f"celery_gpulease, {pool}", pool))
        found = [_rest(setups, seconds) for _ in range(rounds)]
        base = statistics.median(one[0][2] for one in found)
        for number, setup in enumerate(setups):
            lines.append((setup.name, *_texts([one[number] for one in found], base)))
    return [Table(title, columns, lines)]


def _texts(rounds, base):
    commands, cpu, memory = (statistics.median(one[index] for one in rounds) for index in range(3))
    names = ", ".join(f"{name} {each:.2f}" for name, each in rounds[-1][3])
    return f"{commands:.2f}", f"{cpu:.2%}", f"{memory:.1f} MB", f"{memory - base:+.1f} MB", names


def _rest(setups, seconds):
    with ExitStack() as stack:
        labs = [stack.enter_context(lab(setup, workers=0)) for setup in setups]
        trees = []
        for one in labs:
            mains = [psutil.Process(process.pid) for process in one.workers(range(WORKERS))]
            one.send(WARM_UP)
            trees.append([part for main in mains for part in (main, *main.children(recursive=True))])
        time.sleep(2)  # the warm-up's last words
        monitors = [stack.enter_context(_monitor(one.server.port)) for one in labs]
        before = [_cpu(tree) for tree in trees]
        time.sleep(seconds)
        used = [(_cpu(tree) - start) / seconds / WORKERS for tree, start in zip(trees, before, strict=True)]
        asked = [_commands(monitor, seconds * WORKERS) for monitor in monitors]
        return [
            (sum(rates.values()), cpu, _memory(tree), rates.most_common(6))
            for rates, cpu, tree in zip(asked, used, trees, strict=True)
        ]


def _cpu(tree):
    return sum(sum(part.cpu_times()[:2]) for part in tree)


def _memory(tree):
    lines = [line for part in tree for line in Path(f"/proc/{part.pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024 / WORKERS


def _monitor(port):
    one = socket.create_connection(("127.0.0.1", port))
    one.sendall(b"MONITOR\r\n")
    return one


def _commands(monitor, shares):
    """Command → how often it was sent a second by each worker; not what scripts do inside the server."""
    monitor.settimeout(0)  # what has come
    chunks = []
    try:
        while chunk := monitor.recv(1 << 20):
            chunks.append(chunk)
    except BlockingIOError:
        lines = b"".join(chunks).decode(errors="replace").splitlines()[1:]
    words = [line.split('"')[1].lower() for line in lines if '"' in line and " lua]" not in line]
    return Counter({word: count / shares for word, count in Counter(words).items()})

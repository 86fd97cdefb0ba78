"""The rows: the lowest of everything, the highest of everything, and between them each thing varied once."""

from dataclasses import dataclass, replace

#: Of what pip installs, in the order of the table.
PACKAGES = ("celery", "kombu", "redis")
#: What meets the server and redis-py: every operation of the ledger, and real notifications.
OF_THE_SERVER = ("tests/integration/ledger", "tests/integration/sending", "tests/faults/test_dispatch.py")
#: What meets Python, Celery and kombu: senders, and real workers in every kind of trouble.
OF_CELERY = (
    "tests/integration/sending",
    "tests/semantics/test_canvas.py::test_ids_headers_and_stamps_are_unchanged_by_holding",
    "tests/faults/test_worker.py",
)


@dataclass(frozen=True)
class Row:
    """One environment.

    Attributes:
        name: Of the row, for `ROWS`.
        python: The interpreter's minor version.
        server: One of `servers.SERVERS`.
        celery: A version, as pip takes it; empty for the newest. The rest likewise.
        kombu: The newest is the newest that this Celery takes.
        redis: redis-py; the newest is the newest that this kombu takes.
        is_about_python: Without this interpreter the row says nothing; the others run with the nearest that there is.
        tests: What it runs: all, or what can tell of that which it varies.
    """

    name: str
    python: str
    server: str
    celery: str = ""
    kombu: str = ""
    redis: str = ""
    is_about_python: bool = False
    tests: tuple[str, ...] = tuple(dict.fromkeys(OF_THE_SERVER + OF_CELERY))

    def pins(self) -> list[str]:
        """What pip is told."""
        return [name + version for name in PACKAGES if (version := getattr(self, name))]


LOWEST = Row("lowest", "3.10", "redis-6.2", "==5.4.0", "==5.3.4", "==4.5.2")
HIGHEST = Row("highest", "3.14", "valkey-9")
#: What the other rows vary.
USUAL = replace(HIGHEST, name="usual", python="3.12")

ROWS = {
    row.name: row
    for row in (
        LOWEST,
        HIGHEST,
        *(
            replace(USUAL, name=f"python-{version}", python=version, is_about_python=True, tests=OF_CELERY)
            for version in ("3.10", "3.11", "3.12", "3.13")
        ),
        # each brings the kombu and the redis-py that are the newest for it: 5.5 a redis-py 5, 5.6 a redis-py 6
        *(
            replace(USUAL, name=f"celery-{version}", celery=f"=={version}.*", tests=OF_CELERY)
            for version in ("5.4", "5.5", "5.6")
        ),
        *(
            replace(USUAL, name=f"redis-py-{version}", redis=f"=={version}.*", tests=OF_THE_SERVER)
            for version in ("6.4", "7")
        ),
        *(
            replace(USUAL, name=server, server=server, tests=OF_THE_SERVER)
            for server in ("redis-6.2", "redis-7.0", "redis-8", "valkey-8")
        ),
    )
}

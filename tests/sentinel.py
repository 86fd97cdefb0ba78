"""A master, its replica and three sentinels, all real, on loopback.

::

    with Sentinels(folder, processes, binary) as sentinels:
        sentinels.master.kill()                      # one of them promotes the replica
        sentinels.client                             # of whoever is master now
"""

from pathlib import Path
from types import TracebackType

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_gpulease.embedded import HOST, EmbeddedServer, free_port
from tests.processes import Processes
from tests.waiting import wait_until

NAME = "leases"
READY_SECONDS = 30.0
#: Milliseconds after which a master that does not answer is down.
DOWN_AFTER_MS = 1000
#: A sentinel cuts the connections of whom it makes a master, or a replica.
PATIENCE = Retry(ExponentialBackoff(), 10)


class Sentinels:
    """The servers, which end with the block.

    Attributes:
        master, replica: As they began.
        client: Of whoever is master now.
    """

    def __init__(self, folder: Path, processes: Processes, binary: str) -> None:
        self._folder, self._processes, self._binary = folder, processes, binary
        self._ports = [free_port() for _ in range(3)]
        self.master = EmbeddedServer("--repl-diskless-sync-delay", "0", binary=binary)
        self.replica = EmbeddedServer("--replicaof", HOST, str(self.master.port), binary=binary)
        self.manager = Sentinel([(HOST, port) for port in self._ports])
        patient = {"retry": PATIENCE, "socket_timeout": 2, "socket_connect_timeout": 2}  # it may be frozen
        self.client: redis.Redis = self.manager.master_for(NAME, decode_responses=True, **patient)

    @property
    def url(self) -> str:
        """As a broker's."""
        return ";".join(f"sentinel://{HOST}:{port}/0" for port in self._ports)

    @property
    def conf(self) -> dict:
        """What Celery must be told besides."""
        named = {"master_name": NAME}
        return {"broker_transport_options": named, "result_backend_transport_options": named}

    def cut_replica(self) -> None:
        """From now on nothing that the master writes reaches its replica."""
        with redis.Redis.from_url(self.replica.url) as replica, redis.Redis.from_url(self.master.url) as master:
            assert master.wait(1, 5000) == 1
            replica.config_set("masterauth", "wrong")  # so that it cannot come back
            master.client_kill_filter(_type="replica")
            wait_until(
                lambda: replica.info()["master_link_status"] == "down", READY_SECONDS, "the replica to be cut off"
            )

    def fail_over(self) -> None:
        """Orders it, and waits until the master knows: what it is told before that, Redis loses."""
        self.manager.sentinels[0].execute_command("SENTINEL", "FAILOVER", NAME)
        with redis.Redis.from_url(self.master.url, retry=PATIENCE) as master:
            wait_until(lambda: master.info()["role"] == "slave", READY_SECONDS, "the master to be demoted")

    def until_promoted(self) -> None:
        """Waits until the replica is the master, and every sentinel says so."""
        wait_until(self._is_promoted, READY_SECONDS, "a failover")
        self.client.connection_pool.disconnect()

    def _is_promoted(self) -> bool:
        with redis.Redis.from_url(self.replica.url, retry=PATIENCE) as replica:
            named = {sentinel.sentinel_master(NAME)["port"] for sentinel in self.manager.sentinels}
            return replica.info()["role"] == "master" and named == {self.replica.port}

    def __enter__(self) -> "Sentinels":
        self.master.start()
        self.replica.start()
        for port in self._ports:
            self._start_sentinel(port)
        wait_until(self._know_each_other, READY_SECONDS, "sentinels that know each other")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.manager.close()
        self.replica.close()
        self.master.close()

    def _start_sentinel(self, port: int) -> None:
        conf = self._folder / f"sentinel-{port}.conf"
        conf.write_text(
            f"port {port}\nbind {HOST}\ndir {self._folder}\n"
            f"sentinel monitor {NAME} {HOST} {self.master.port} 2\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {NAME} 5000\n"
        )
        self._processes.start(self._binary, str(conf), "--sentinel", name=f"sentinel-{port}")

    def _know_each_other(self) -> bool:
        try:
            seen = [sentinel.sentinel_master(NAME) for sentinel in self.manager.sentinels]
        except redis.exceptions.ConnectionError:
            return False
        return all((one["num-other-sentinels"], one["num-slaves"]) == (2, 1) for one in seen)

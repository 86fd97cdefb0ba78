"""Borrows a GPU from Celery's workers, for a notebook or a script: two keys in Redis are all it takes.

`gpu:lease:<gpu>` exists while the GPU is busy: who sets it has the GPU, who deletes it gives it back. While
`gpu:want:<gpu>` exists, no new task is given to the GPU: the next turn is for who left that wish. Both have a TTL, so
that a program that dies keeps nothing.
"""

import getpass
import os
import socket
import threading
import time
import uuid

from redis import Redis, RedisError

TTL_SECONDS = 60.0  # how long a lease outlives a program that died
RENEW_SECONDS = TTL_SECONDS / 3
LOOK_SECONDS = 1.0  # how often to look, in case the key's event does not come

# A lease that ran out may be another's by now: look that it is still ours, and change it, in one step.
RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class LostError(RuntimeError):
    """The lease ran out, or was taken away: the GPU is another's."""


class BorrowedGPU:
    """A GPU of the workers', by its name: `<host>:<index>`, as `gpulease status` prints it.

    `take()` or `wait()` makes it ours, `give_back()` or the end of a `with` block theirs again. Between the two a
    thread renews the lease, whatever the program does; when the program dies, the lease ends with its TTL.
    """

    def __init__(self, gpu: str, url: str | None = None) -> None:
        """Touches nothing yet."""
        url = url or os.environ.get("REDIS_URL", "redis://localhost:6379/0")
        self.gpu, self.me = gpu, f"{getpass.getuser()}@{socket.gethostname()}-{uuid.uuid4().hex}"
        self._lease, self._want = f"gpu:lease:{gpu}", f"gpu:want:{gpu}"
        self._redis = Redis.from_url(url, socket_timeout=5)
        self._ours_until = 0.0
        self._given_back = threading.Event()
        self._keeper: threading.Thread | None = None

    def take(self) -> bool:
        """Takes the GPU if it is free now; is it ours?"""
        asked = time.monotonic()
        is_ours = self._redis.set(self._lease, self.me, nx=True, px=milliseconds(TTL_SECONDS))
        if (
            not is_ours and self._redis.get(self._lease) != self.me.encode()
        ):  # it is: redis-py repeats what got no answer
            return False
        self._stop_renewing()  # what was before
        self._ours_until = asked + TTL_SECONDS
        self._given_back.clear()
        self._keeper = threading.Thread(target=self._renew, daemon=True)
        self._keeper.start()
        return True

    def wait(self) -> "BorrowedGPU":
        """Leaves a wish for the next turn, and takes the GPU when it comes.

        Subscribe, then look, then wait. The first message says that we are subscribed: an event from before it is
        missed, so it makes us look again, as every event does. An event is a hint: another program that waits may be
        quicker, and then we go on waiting. Without events (the server may refuse them) we look once a second.
        """
        database = self._redis.connection_pool.connection_kwargs.get("db") or 0
        with self._redis.pubsub() as events:
            events.subscribe(f"__keyspace@{database}__:{self._lease}")
            try:
                while True:
                    self._redis.set(self._want, self.me, px=milliseconds(TTL_SECONDS))
                    if self.take():
                        return self
                    events.get_message(timeout=LOOK_SECONDS)
            finally:
                self._redis.eval(DELETE, 1, self._want, self.me)

    def give_back(self) -> None:
        """Celery's tasks go on at once. Does nothing where the lease is not ours any more."""
        self._stop_renewing()
        self._ours_until = 0.0
        self._redis.eval(DELETE, 1, self._lease, self.me)

    @property
    def lost(self) -> bool:
        """Is the GPU not ours, or not certainly so? Redis is not asked: what the last renewal promised counts."""
        return time.monotonic() >= self._ours_until

    def check(self) -> None:
        """Raises LostError where the GPU is not ours: call it between two steps of long work."""
        if self.lost:
            message = f"{self.gpu} is not ours any more"
            raise LostError(message)

    def _renew(self) -> None:
        while not self._given_back.wait(RENEW_SECONDS):
            asked = time.monotonic()
            try:
                is_ours = self._redis.eval(RENEW, 1, self._lease, self.me, milliseconds(TTL_SECONDS))
            except RedisError:
                continue  # the lease has a while left, and Redis may be back by then
            if not is_ours:
                self._ours_until = 0.0
                return
            self._ours_until = asked + TTL_SECONDS

    def _stop_renewing(self) -> None:
        self._given_back.set()
        if self._keeper:
            self._keeper.join()

    def __enter__(self) -> "BorrowedGPU":
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()


def milliseconds(seconds: float) -> int:
    """What Redis counts in."""
    return round(seconds * 1000)

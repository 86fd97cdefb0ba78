"""Connections that are kept at hand for single commands.

redis-py takes a connection out of its pool for each command, looks whether it is alive, counts and gives it back: in a
process at rest, where a task begins or ends, that takes more time than all the rest of a round trip. One that has died
is noticed all the same: the command fails, and is sent once more on a new connection, as redis-py does by itself.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from redis.exceptions import ConnectionError, ResponseError  # noqa: A004


class Kept:
    """As many connections as threads ask at the same time; made like those of a client's pool, and not counted there.

    Args:
        client: A redis.Redis of this process.
    """

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._idle = deque[Any]()

    def ask(self, *command: Any) -> Any:
        """The answer to a command. It may be sent twice, where the connection breaks.

        Raises:
            redis.exceptions.RedisError: As from redis-py.
        """
        is_idle = bool(self._idle)
        connection = self._taken()
        is_sound = False  # whatever interrupts us, a signal's handler too: a reply that was not read must not be next
        try:
            try:
                answer = _asked(connection, command)
            except ConnectionError:
                if not is_idle:
                    raise
                # it has died since, and `retry` in gpulease_redis_options may be None: redis-py looks before it sends
                answer = _asked(connection, command)
            is_sound = True
        except ResponseError:
            is_sound = True
            raise
        finally:
            if not is_sound:
                connection.disconnect()
            self._idle.append(connection)
        return answer

    def _taken(self) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:  # others are at all of them
            return self._pool.connection_class(**self._pool.connection_kwargs)
        if not self._pool.owns_connection(connection):  # a sentinel has named another master
            connection.disconnect()
        return connection


def _asked(connection: Any, command: tuple[Any, ...]) -> Any:
    """The same, as often as this client's `retry` says."""
    return connection.retry.call_with_retry(lambda: _answer(connection, command), lambda _: connection.disconnect())


def _answer(connection: Any, command: tuple[Any, ...]) -> Any:
    connection.connect()  # where it is not; by itself it would not ask the sentinels (`send_packed_command`)
    connection.send_command(*command)
    return connection.read_response()

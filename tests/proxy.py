"""A TCP proxy between our processes and a server: it cuts, stalls, loses and delays what passes.

::

    with Proxy(server.port) as proxy:
        proxy.cut()      # every connection reset, none accepted
        proxy.heal()
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from types import TracebackType
from typing import Any, TypeVar

from celery_gpulease.embedded import HOST, free_port

T = TypeVar("T")

#: Seconds; a deadline, no promise.
LONGEST = 60.0


class Proxy:
    """Passes bytes on between its own port and a server's, until told otherwise; any method, at any time."""

    def __init__(self, server_port: int) -> None:
        self.port = free_port()
        self._server_port = server_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._links: set[_Link] = set()
        self._passing = asyncio.Event()
        self._is_cut, self._delay = False, 0.0

    @property
    def url(self) -> str:
        """The server's database 0, through here."""
        return f"redis://{HOST}:{self.port}/0"

    def cut(self) -> None:
        """Resets every connection and accepts none, until healed: a server that is gone, a firewall that rejects."""
        self._do(self._cut)

    def reset(self) -> None:
        """Resets every connection; new ones pass."""
        self._do(self._reset)

    def stall(self) -> None:
        """Lets nothing pass until healed, and then everything: a network that was split for a while."""
        self._do(self._passing.clear)

    def lose(self) -> None:
        """Leaves the connections that there are open, and never passes anything on them again; new ones pass.

        Half-open connections: what is left of them when a host has lost power or a router has forgotten them.
        """
        self._do(self._lose)

    def delay(self, seconds: float) -> None:
        """Holds back for so long whatever is sent to the server, until healed."""
        self._delay = seconds

    def heal(self) -> None:
        """New connections pass at once, and so do those that were neither reset nor lost."""
        self._do(self._heal)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, HOST, self.port))
        self._do(self._heal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, action: Callable[[], None]) -> None:
        async def act() -> None:
            action()

        self._run(act())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        if not wait([running], LONGEST).done:
            told = "\n".join(map(repr, asyncio.all_tasks(self._loop)))
            raise AssertionError(f"The proxy does not answer for {LONGEST:g} s; it is at\n{told}")
        return running.result()

    async def _end(self) -> None:
        self._server.close()
        self._cut()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _cut(self) -> None:
        self._is_cut = True
        self._reset()

    def _reset(self) -> None:
        for link in list(self._links):
            link.reset()

    def _lose(self) -> None:
        for link in self._links:
            link.is_lost = True

    def _heal(self) -> None:
        self._is_cut, self._delay = False, 0.0
        self._passing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            to_server = await asyncio.open_connection(HOST, self._server_port)
        except OSError:  # no server: the client must see that too
            writer.transport.abort()
            return
        link = _Link(writer, to_server[1])
        self._links.add(link)
        try:
            await asyncio.gather(
                self._pump(link, reader, to_server[1], is_request=True),
                self._pump(link, to_server[0], writer, is_request=False),
            )
        except (OSError, asyncio.CancelledError):
            pass  # one side was reset, or the proxy ends: so is the other
        finally:
            self._links.discard(link)
            link.reset()

    async def _pump(
        self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool
    ) -> None:
        while data := await reader.read(65536):
            if is_request and self._delay:
                await asyncio.sleep(self._delay)
            await self._passing.wait()
            if not link.is_lost:
                writer.write(data)
                await writer.drain()
        if not link.is_lost:
            link.reset()


class _Link:
    """One connection through the proxy."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers
        self.is_lost = False

    def reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

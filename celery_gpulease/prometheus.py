"""The way out to Prometheus: readings become what a scrape is answered. The extra `prometheus` brings its library."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.tally import Distribution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery_gpulease.tally import Measure, Values


class Server:
    """Answers scrapes, in threads of its own, from now on.

    Args:
        read: What a scrape is told, each time.
        address: Of the interface; empty for all of them.
        port: Of TCP.

    Raises:
        ConfigurationError: The library is not installed.
        OSError: The port cannot be had.
    """

    def __init__(self, read: Callable[[], Iterable[tuple[Measure, Values]]], address: str, port: int) -> None:
        prometheus = library()
        registry = prometheus.CollectorRegistry(auto_describe=False)
        registry.register(_Collector(prometheus.core, read))
        self._server, self._thread = prometheus.start_http_server(port, address or "0.0.0.0", registry)  # noqa: S104

    def forget(self) -> None:
        """Closes this process's copy of the port, after a fork."""
        self._server.socket.close()

    def close(self) -> None:
        """Answers no more, and gives the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def library() -> Any:
    """prometheus_client.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        import prometheus_client.core  # noqa: PLC0415  # only who measures needs it
    except ImportError as error:
        message = "metrics need prometheus_client: pip install 'celery-gpulease[prometheus]'"
        raise ConfigurationError(message) from error
    return prometheus_client


class _Collector:
    """Asked by the library at each scrape."""

    def __init__(self, core: Any, read: Callable[[], Iterable[tuple[Measure, Values]]]) -> None:
        self._core, self._read = core, read

    def collect(self) -> Iterator[Any]:
        """All readings, as the library has them."""
        for measure, values in self._read():
            yield self._family(measure, values)

    def _family(self, measure: Measure, values: Values) -> Any:
        kind = self._core.GaugeMetricFamily
        if measure.buckets:
            kind = self._core.HistogramMetricFamily
        elif measure.is_counter:
            kind = self._core.CounterMetricFamily
        family = kind(measure.name, measure.help, labels=measure.labels)
        for labels, value in values.items():
            if isinstance(value, Distribution):
                family.add_metric(labels, _cumulated(measure, value), sum_value=value.total)
            else:
                family.add_metric(labels, value)
        return family


def _cumulated(measure: Measure, found: Distribution) -> list[tuple[str, int]]:
    bounds = [*map(str, measure.buckets), "+Inf"]
    return list(zip(bounds, accumulate(found.counts), strict=True))

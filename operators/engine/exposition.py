"""Where metrics and health go: text of Prometheus, an HTTP endpoint, OpenTelemetry. Libraries do the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from tidestate.operators.progress.metrics import Family
from tidestate.recovery.inspect.health import health
from tidestate.recovery.inspect.limits import limits_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.distribution import NAME, install
from tidestate.statestore.errors import TidestateError, UnavailableError, UsageError

LOOPBACK = "127.0.0.1"
Source = Callable[[], Sequence[Family]]
"""Makes the families of a moment; called from any thread."""


def exposition_text(families: Sequence[Family]) -> str:
    """In the text format of Prometheus. Raises `UsageError` without the extra ``metrics``."""
    client = _client()
    text: bytes = client.generate_latest(_registry(client, lambda: families))
    return text.decode()


def address_of(given: int | str) -> tuple[str, int]:
    """Host and port of ``metrics=``: a port alone is on loopback. Raises `UsageError`."""
    host, _, port = str(given).rpartition(":")
    if isinstance(given, bool) or not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            'metrics need a port, such as 9464, or a host and port, such as "0.0.0.0:9464"',
            code="metrics",
            found=given,
        )
    return host.strip("[]") or LOOPBACK, int(port)


HEALTH = "/healthz"


def health_answer(checkpoint: Checkpoint, query: str) -> tuple[int, bytes]:
    """Status and JSON of a request for `HEALTH`, whose query has the options of ``tidestate check``: 200 if all
    limits hold, 400 for options that are wrong, 503 otherwise, also for a root that cannot be read.
    """
    try:
        limits = limits_of(dict(parse_qsl(query, keep_blank_values=True)))
    except UsageError as error:
        return 400, msgspec.json.encode({"error": str(error)})
    try:
        job_health = health(checkpoint, limits)
    except TidestateError as error:
        return 503, msgspec.json.encode({"error": str(error)})
    return (200 if job_health.holds else 503), msgspec.json.encode(job_health.plain())


class Endpoint:
    """Serves the metrics of a job at ``/metrics``, and its health, until `close`; port 0 takes any that is free."""

    def __init__(self, at: tuple[str, int], source: Source, checkpoint: Checkpoint) -> None:
        client = _client()
        try:
            self._server, self._thread = client.start_http_server(at[1], at[0], _registry(client, source))
            # A library's server answers every address with metrics: health is put in front of it.
            self._server.set_app(_with_health(self._server.get_app(), checkpoint))
        except OSError as error:
            raise UnavailableError(
                f"metrics cannot be served at this host and port ({error.strerror or error}): choose another port",
                code="metrics-port",
                host=at[0],
                port=at[1],
            ) from None
        host, port = self._server.server_address[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def close(self) -> None:
        """Stop the server and its thread, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def instrument(source: Source, provider: Any = None) -> None:
    """Observe the metrics with a ``MeterProvider`` of OpenTelemetry (default: the global one), whenever it collects.
    Raises `UsageError` without the extra ``opentelemetry``.
    """
    try:
        from opentelemetry import metrics as api
    except ImportError as error:
        raise UsageError(
            f"OpenTelemetry needs the package {error.name}: {install('opentelemetry')}", code="metrics-package"
        ) from None
    if provider is not None and not callable(getattr(provider, "get_meter", None)):
        raise UsageError(
            "opentelemetry() takes a MeterProvider of OpenTelemetry, or nothing for the global one",
            code="argument",
            parameter="provider",
            found=f"{provider!r:.100} ({type(provider).__name__})",
        )
    meter = api.get_meter(NAME, meter_provider=provider)

    def observed(name: str) -> Callable[[Any], Iterator[Any]]:
        def callback(_options: Any) -> Iterator[Any]:
            for family in source():
                if family.name == name:
                    yield from (api.Observation(value, dict(labels)) for labels, value in family.samples)

        return callback

    for family in source():
        make = meter.create_observable_counter if family.kind == "counter" else meter.create_observable_gauge
        make(f"{NAME}.{family.name}", [observed(family.name)], description=family.help)


def _with_health(metrics: Any, checkpoint: Checkpoint) -> Any:
    """An application of WSGI that answers requests for `HEALTH` itself, and none for an address that is wrong: a
    misspelt probe must not be healthy.
    """

    def answer(environment: dict[str, Any], start: Any) -> Any:
        path = environment["PATH_INFO"]
        if path in ("/", "/metrics"):
            return metrics(environment, start)
        if path != HEALTH:
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"here are /metrics and /healthz\n"]
        status, body = health_answer(checkpoint, environment["QUERY_STRING"])
        start(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", "application/json")])
        return [body]

    return answer


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError:
        raise UsageError(
            f"metrics need the package prometheus_client: {install('metrics')}", code="metrics-package"
        ) from None
    return prometheus_client


def _registry(client: Any, source: Source) -> Any:
    registry = client.CollectorRegistry()
    registry.register(_Collector(client, source))
    return registry


class _Collector:
    """What a registry of prometheus_client asks."""

    def __init__(self, client: Any, source: Source) -> None:
        self._kinds = {
            "gauge": client.metrics_core.GaugeMetricFamily,
            "counter": client.metrics_core.CounterMetricFamily,
        }
        self._source = source

    def describe(self) -> list[Any]:
        """Nothing, so that registering asks for no samples."""
        return []

    def collect(self) -> Iterator[Any]:
        for family in self._source():
            made = self._kinds[family.kind](f"{NAME}_{family.name}", family.help)
            for labels, value in family.samples:
                made.add_sample(
                    made.name + ("_total" if family.kind == "counter" else ""), dict(labels), float(value)
                )
            yield made

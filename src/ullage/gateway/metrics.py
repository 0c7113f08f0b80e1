"""GET /metrics of the gateway. Labels are the names in the file of the replicas and fixed words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ullage.gateway.gateway import Gateway
from ullage.gateway.replica import STATES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "ullage_gateway_"


class GatewayCollector(Collector):
    """Everything is asked for when it is read.

    :param num_answers: by status, growing
    """

    def __init__(self, gateway: Gateway, num_answers: Mapping[int, int]) -> None:
        self._gateway = gateway
        self._num_answers = num_answers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            PREFIX + "requests",
            "Times a request was offered to a replica, by how that ended",
            labels=["replica", "outcome"],
        )
        outstanding = GaugeMetricFamily(PREFIX + "outstanding", "Requests that a replica has now", labels=["replica"])
        weight = GaugeMetricFamily(PREFIX + "weight", "Weight now; 0 when out of rotation", labels=["replica"])
        state = GaugeMetricFamily(PREFIX + "state", "1 for the state that a replica is in", labels=["replica", "state"])
        for replica in self._gateway.replicas:
            name = replica.config.name
            for outcome, count in replica.counts.items():
                requests.add_metric([name, outcome], count)
            outstanding.add_metric([name], replica.num_outstanding)
            weight.add_metric([name], replica.weight)
            for one in STATES:
                state.add_metric([name, one], float(one == replica.state))
        answers = CounterMetricFamily(
            PREFIX + "answers", "Answers to clients; 499: the client left before", labels=["status"]
        )
        for status, count in sorted(self._num_answers.items()):
            answers.add_metric([str(status or "other")], count)
        refusals = CounterMetricFamily(
            PREFIX + "connection_refusals",
            "Answers that connections gave by themselves, by error code",
            labels=["code"],
        )
        for code, count in self._gateway.num_refusals.items():
            refusals.add_metric([code], count)
        in_work = GaugeMetricFamily(
            PREFIX + "requests_in_work", "Requests in work", value=self._gateway.in_work.num_requests
        )
        yield from (requests, outstanding, weight, state, answers, refusals, in_work)


def registry_of(gateway: Gateway, num_answers: Mapping[int, int]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(GatewayCollector(gateway, num_answers))
    return registry


def metrics_text(registry: CollectorRegistry) -> bytes:
    return generate_latest(registry)

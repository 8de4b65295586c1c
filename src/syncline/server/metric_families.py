"""How a number is shown to Prometheus."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"syncline_{name}", about, value=value)


def gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"syncline_{name}", about, value=value)


def counters(name: str, about: str, label: str, values: dict[str, int]) -> Metric:
    """One number for each value of `label`."""
    family = CounterMetricFamily(f"syncline_{name}", about, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family

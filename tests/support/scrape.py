"""What Prometheus would see of a front end."""

import socket
import urllib.request
from collections.abc import Mapping

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

SCRAPE_S = 5.0


def free_port(count: int = 1) -> int:
    """The first of `count` ports in a row that nobody listens on."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
        if all(map(_is_free, range(port, port + count))):
            return port


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except (OSError, OverflowError):
        return False
    return True


def families(port: int) -> dict[str, Metric]:
    """By name; a counter's has no _total. Raises OSError if nobody answers in time."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SCRAPE_S) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


class Scrape:
    """The samples of one scrape."""

    def __init__(self, port: int) -> None:
        self.names = set[str]()
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in families(port).values():
            for sample in family.samples:
                self.names.add(sample.name)
                self._samples[sample.name, frozenset(sample.labels.items())] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """Of the metric twostroke_`name`; 0 if there is none with these labels."""
        return self._samples.get((f"twostroke_{name}", frozenset(labels.items())), 0.0)

    def labelled(self, name: str) -> Mapping[frozenset[tuple[str, str]], float]:
        """All of one name, by labels."""
        found = f"twostroke_{name}"
        return {labels: value for (name, labels), value in self._samples.items() if name == found}

"""The metrics' names: dashboards and alerts rely on them, those that we ship among them."""

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import yaml

from frontend_svc.backend import Backend
from frontend_svc.metrics import Page
from frontend_svc.responses import Times
from frontend_svc.tally import Tally
from svc_wire.frontend_link import PROTOCOL_VERSION, Attached
from tests.support.fake_scheduler import MODEL, status
from tests.support.frontend import NOON
from twostroke.v1 import generation_pb2 as pb

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("metrics.txt")
ALERTS = ROOT / "deploy" / "prometheus-alerts.yml"


async def _page() -> Page:
    """With something in every family."""
    tally, times = Tally(), Times(arrived=0.0, first_token=1.0)
    tally.begin("Generate")
    tally.begin_answer(times)
    tally.end_answer(pb.Finish(reason=pb.FINISH_REASON_STOP), times, 2, now=2.0)
    tally.end("Generate", grpc.StatusCode.OK)
    with ThreadPoolExecutor(1) as workers:
        backend = Backend(
            "inproc://nobody", "golden", workers,
            tokenizer_folder=None, outage_timeout_s=1.0, now=lambda: NOON,
        )  # fmt: skip
        await backend.attached(Attached(PROTOCOL_VERSION, MODEL, 300, 100))
        backend.status(status())
    return Page(tally, backend)


def _lines(page: Page) -> Iterator[str]:
    """A line a sample's name: type, name, labels."""
    for metric in page.collect():
        labels = {sample.name: " ".join(sample.labels) for sample in metric.samples}
        assert labels, metric.name
        yield from (f"{metric.type:<10}{name} {labels[name]}".rstrip() for name in labels)


def test_the_names_of_metrics(golden: Callable[[str, str], None]) -> None:
    golden("metrics.txt", "\n".join(_lines(asyncio.run(_page()))) + "\n")


@pytest.mark.parametrize("path", [ALERTS, ROOT / "docs" / "operations.md"], ids=lambda p: p.name)
def test_what_is_written_about_exists(path: Path) -> None:
    known = set(re.findall(r"twostroke_\w+", GOLDEN.read_text()))
    families = {re.sub(r"_(count|sum|bucket)$", "", name) for name in known}
    # With a letter after it, the prefix; a name in the docs may be that of a family.
    written = set(re.findall(r"\btwostroke_[a-z]\w*", path.read_text())) - {"twostroke_client"}
    assert written
    assert written <= known | families


def test_alerts_say_how_urgent_they_are_and_what_is_wrong() -> None:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
    described = set(re.findall(r"`(Twostroke\w+)`", (ROOT / "docs/operations.md").read_text()))
    assert described == {rule["alert"] for rule in group["rules"]}

"""Orders that move the ports for metrics: those that cannot be had are named."""

import socket
from collections.abc import Iterator

import pytest

from supervisor_svc.arguments import value_of
from supervisor_svc.metrics_ports import refusal

COMMAND = ["frontend_svc", "--port", "0"]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_one_that_is_taken_is_named(taken: int) -> None:
    why = f"cannot show metrics on 127.0.0.1:{taken}: Address already in use"
    assert refusal("frontend", COMMAND, ["--metrics-port", str(taken)]) == why
    assert refusal("frontend", COMMAND, [f"--metrics-port={taken}"]) == why


def test_further_front_ends_have_those_after_it(taken: int) -> None:
    order = ["--metrics-port", str(taken - 1)]
    assert f":{taken}: Address already in use" in refusal("frontend-2", COMMAND, order)


def test_it_is_looked_for_at_the_host_of_the_front_end(taken: int) -> None:
    command = [*COMMAND, "--host", "127.0.0.2"]
    assert refusal("frontend", command, ["--metrics-port", str(taken)]) == ""


def test_the_port_that_it_has_is_its_own(taken: int) -> None:
    """Its predecessor listens there, and leaves it to the new one."""
    command = [*COMMAND, "--metrics-port", str(taken)]
    assert refusal("frontend", command, []) == ""
    assert refusal("frontend", command, ["--metrics-port", str(taken)]) == ""


@pytest.mark.parametrize("order", [[], ["--metrics-port", "0"], ["--metrics-port"]])
def test_none_is_asked_for(order: list[str]) -> None:
    assert refusal("frontend", COMMAND, order) == ""


def test_what_is_no_number_is_for_the_check_of_the_options_to_say() -> None:
    assert refusal("frontend", COMMAND, ["--metrics-port", "many"]) == ""


def test_what_is_no_port_cannot_be_had() -> None:
    order = ["--metrics-port", "65535"]
    assert "cannot show metrics on 127.0.0.1:65536" in refusal("frontend-2", COMMAND, order)


def test_the_last_word_counts() -> None:
    assert value_of(["--host", "a", "--host=b"], "--host") == "b"
    assert value_of(["--hostname", "a"], "--host") is None

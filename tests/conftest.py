"""What all tests share: golden files and how to rewrite them, how Hypothesis searches, and that
nothing is left behind.

Hypothesis draws the same examples every time, so that a red build turns green by a
change only; `HYPOTHESIS_PROFILE=explore` draws others, and more, when bugs are wanted.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import leftovers

# Two threads of OpenMP that spin at each other's barriers, beside other processes on two cores,
# make a step a hundred times slower. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with SIGINT ignored, and ignoring is inherited: the processes of
# tests that interrupt them would never notice.
signal.signal(signal.SIGINT, signal.default_int_handler)

leftovers.mark()

hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite golden files and scenarios, then look at git",
    )


@pytest.fixture(scope="module", autouse=True)
def _nothing_left() -> Iterator[None]:
    """Fails the last test of a file whose tests leave processes or directories behind."""
    yield
    if left := leftovers.clear():
        pytest.fail("tests of this file left behind:\n" + "\n".join(left), pytrace=False)


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture
def golden(rewrite: bool) -> Callable[[str, str], None]:
    """Call it with a file's name and the text that it must hold.

    A difference is either a mistake or a change of a contract; for the latter run with `--rewrite`
    and say in the commit why.
    """

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if rewrite:
            path.write_text(text)
        assert text == path.read_text(), f"{name} differs; see the `golden` fixture"

    return check

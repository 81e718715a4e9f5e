"""Which device an executor takes."""

import pytest
import torch

from executor_svc.devices import choose_device
from executor_svc.errors import ExecutorError

pytestmark = pytest.mark.model


def test_auto_is_the_cpu_where_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == choose_device("cpu").type == "cpu"


def test_a_cuda_device_is_taken_and_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert str(choose_device("auto")) == str(choose_device("cuda")) == "cuda:0"
    assert str(choose_device("cuda:1")) == "cuda:1"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cuda", "torch sees no CUDA device"),
        ("gpu", "'gpu' is none of: auto, cpu, cuda, cuda:N"),
        ("mps", "'mps' is none of"),
    ],
)
def test_others_get_one_sentence(name: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExecutorError, match=sentence):
        choose_device(name)

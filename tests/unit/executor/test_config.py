"""Models as people name them."""

from pathlib import Path

import pytest

from executor_svc.errors import ModelNotFound, ModelNotUsable
from executor_svc.model_source import find_model


def test_a_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_model(str(tmp_path)) == tmp_path


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotUsable, match=r"has no config\.json"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("name", ["/no/such", "./no", "smollm3", "a/b/c"])
def test_what_is_neither_folder_nor_hub_name(name: str) -> None:
    with pytest.raises(ModelNotFound, match="there is no folder"):
        find_model(name)


def test_a_hub_name_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound, match="cannot be had from the hub"):
        find_model("nobody/no-such-model")

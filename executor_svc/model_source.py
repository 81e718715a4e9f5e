"""Finds the folder of a model: the embedded one, a local folder, or a name on the hub."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from executor_svc.embedded import SMOLLM2, embedded_folder
from executor_svc.errors import ModelNotFound, ModelNotUsable

_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def find_model(name: str) -> Path:
    """The local folder of `name`. Raises ModelNotFound, ModelNotUsable."""
    if name == SMOLLM2:
        return embedded_folder()
    folder = Path(name).expanduser()
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise ModelNotUsable(f"{folder} is not a model folder: it has no config.json")
        return folder.resolve()
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ModelNotFound(f"there is no folder {name}, and it is no name on the hub")
    return _download(name)


def _download(name: str) -> Path:
    try:
        found: str = snapshot_download(name, allow_patterns=_WANTED, etag_timeout=10)
        return Path(found)
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelNotFound(
            f"there is no folder {name}, and it cannot be had from the hub: {reason}"
        ) from error

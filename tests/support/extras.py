"""What `pip install twostroke[EXTRA]` would bring, told from the metadata of what is installed."""

import importlib.metadata as metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def outside(extra: str) -> set[str]:
    """Top-level modules that are installed here and that the extra does not bring."""
    brought = _closure("twostroke", extra)
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & brought
    }


def _closure(name: str, *extras: str) -> set[str]:
    seen: set[tuple[str, str]] = set()
    ahead = [(canonicalize_name(name), extra) for extra in ("", *extras)]
    while ahead:
        package, extra = ahead.pop()
        if (package, extra) in seen:
            continue
        seen.add((package, extra))
        for text in metadata.requires(package) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                target = canonicalize_name(needed.name)
                ahead += [(target, wanted) for wanted in ("", *needed.extras)]
    return {package for package, _ in seen}

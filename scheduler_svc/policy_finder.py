"""Finding a policy by its name: those that ship, entry points of other packages, MODULE:NAME.

[project.entry-points."twostroke.policies"]
mine = "my_package.my_module:MyPolicy"
"""

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

from scheduler_svc.core import PolicyStalled, Question, answers
from scheduler_svc.core.policies import BY_NAME, OptionError, Policy

GROUP = "twostroke.policies"


class PolicyNotFound(ValueError):
    """There is no such policy, or it cannot be loaded. The text is for a person."""


def installed() -> dict[str, EntryPoint]:
    """Policies of other packages, by name. Those that ship keep their names."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in BY_NAME}


def names() -> list[str]:
    return [*BY_NAME, *sorted(installed())]


def make_policy(name: str, options: Mapping[str, str], *, allow_module: bool = True) -> Policy:
    """The policy `name`, or MODULE:NAME where that is allowed.

    Raises PolicyNotFound, and OptionError for what its options refuse.
    """
    kind = BY_NAME.get(name) or _load(name, allow_module)
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise PolicyNotFound(f"{name!r} is no subclass of {Policy.__module__}.Policy")
    try:
        policy = kind(options)
        answers.name(policy.name)
    except PolicyStalled:
        raise
    except OptionError as error:
        raise OptionError(answers.shown(error, str)) from error
    except answers.Unusable as wrong:
        said = answers.shown(wrong, str)
        raise PolicyNotFound(f"policy {name!r} calls itself {said}") from wrong
    except BaseException as error:
        said = answers.shown(error)
        raise PolicyNotFound(f"policy {name!r} cannot be made: {said}") from error
    return policy


def make_in_time(
    question: Question, name: str, options: Mapping[str, str], *, allow_module: bool = True
) -> Policy:
    """The same, while `question` is watched; that it takes too long is a PolicyNotFound."""
    try:
        return question.put(lambda: make_policy(name, options, allow_module=allow_module))
    except PolicyStalled:
        question.drop()
        raise PolicyNotFound(f"policy {name!r} takes too long to load and make") from None


def _load(name: str, allow_module: bool) -> object:
    module, colon, attribute = name.partition(":")
    try:
        if colon and allow_module:
            return getattr(importlib.import_module(module), attribute)
        if point := installed().get(name):
            loaded: object = point.load()
            return loaded
    except PolicyStalled:
        raise
    except (ImportError, AttributeError) as error:
        said = answers.shown(error, str)
        raise PolicyNotFound(f"policy {name!r} cannot be loaded: {said}") from error
    except BaseException as error:
        said = answers.shown(error)
        raise PolicyNotFound(f"policy {name!r} cannot be loaded: {said}") from error
    raise PolicyNotFound(f"there is no policy {name!r}; there are: {', '.join(names())}")


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` texts by name. Raises OptionError."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise OptionError(f"write an option as NAME=VALUE, not {text!r}")
        options[name] = value
    return options

"""Chat templates: a conversation rendered to text by the model's own jinja template.

The dialect is the one that model repositories are written for: sandboxed jinja with trimmed blocks,
loop controls, {% generation %} blocks, and the helpers raise_exception, tojson and strftime_now. A
template comes with the model and may be hostile, hence the immutable sandbox; it sees plain strings
only.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplateError(Exception):
    """The template is broken, or it refuses this conversation. The text says why."""


class ChatTemplate:
    """A compiled template. Safe to use from several threads."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime]
    ) -> None:
        """`special_tokens` has the text of bos_token and so on. Raises ChatTemplateError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda format: now().strftime(format)
        environment.globals.update(special_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ChatTemplateError(f"the chat template cannot be compiled: {error}") from error

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """Messages have the keys "role" and "content". Raises ChatTemplateError."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except (TemplateError, TypeError, ValueError, KeyError, ArithmeticError) as error:
            raise ChatTemplateError(str(error) or type(error).__name__) from error


class _Generation(Extension):
    """{% generation %} marks what the model wrote, for training. Here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes for HTML, which is not what a model has learnt."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )

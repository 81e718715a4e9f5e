"""The dialect that chat templates are written in, and what a hostile one cannot do."""

from collections.abc import Mapping

import pytest

from frontend_svc.chat_template import ChatTemplate, ChatTemplateError
from tests.support.frontend import NOON

CHAT = [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "yes"}]


def render(source: str, tokens: Mapping[str, str] | None = None, *, prompt: bool = False) -> str:
    template = ChatTemplate(source, tokens or {}, lambda: NOON)
    return template.render(CHAT, add_generation_prompt=prompt)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for m in messages %}\n  {% if loop.first %}\nU\n  {% endif %}\n{% endfor %}",
            "U\n",
        ),
        ("{{ bos_token }}{{ nothing }}{{ messages | length }}", "<s>2"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hi <b>"}'),
        ("{{ 'é' | tojson }}{{ {'a': 1} | tojson(indent=1) }}", '"é"{\n "a": 1\n}'),
        ("{{ strftime_now('%d %B %Y') }}", "03 February 2026"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}!", "yes!"),
        ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "user"),
        ("{{ tools is none }} {{ documents is none }}", "True True"),
        ("{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}", "2"),
    ],
)
def test_the_dialect(source: str, text: str) -> None:
    assert render(source, {"bos_token": "<s>"}) == text


def test_the_generation_prompt_is_the_templates_choice() -> None:
    source = "{{ messages[0].content }}{% if add_generation_prompt %}<a>{% endif %}"
    assert render(source, prompt=True) == "Hi <b><a>"
    assert render(source, prompt=False) == "Hi <b>"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ nothing.field }}", "undefined"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "not callable|unsafe|safely"),
        ("{{ range(10 ** 9) }}", "Range too big"),
        ("{{ raise_exception('') }}", "TemplateError"),
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_an_error_with_its_text(
    source: str, why: str
) -> None:
    with pytest.raises(ChatTemplateError, match=why):
        render(source)


def test_a_template_cannot_change_the_conversation_of_the_caller() -> None:
    chat = [{"role": "user", "content": "x"}]
    template = ChatTemplate("{% set _ = messages[0].update({'role': 'y'}) %}", {}, lambda: NOON)
    with pytest.raises(ChatTemplateError):
        template.render(chat, add_generation_prompt=False)
    assert chat == [{"role": "user", "content": "x"}]

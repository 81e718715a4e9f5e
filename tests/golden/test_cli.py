"""The command line's commands and options: what users and scripts rely on."""

from collections.abc import Callable, Iterator

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from supervisor_svc.cli import app as serve_app
from twostroke_client.cli import app


def test_commands_and_options(golden: Callable[[str, str], None]) -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    commands = {**group.commands, "serve": get_command(serve_app)}
    lines: list[str] = []
    for name, command in commands.items():
        lines += _pages(name, command)
    golden("cli.txt", "\n".join(lines))


def _pages(name: str, command: object) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for part, of_group in command.commands.items():
            yield from _pages(f"{name} {part}", of_group)
    else:
        assert isinstance(command, TyperCommand)
        yield from _page(name, command)


def _page(name: str, command: TyperCommand) -> Iterator[str]:
    yield f"twostroke {name}: {(command.help or '').splitlines()[0]}"
    for parameter in command.params:
        assert isinstance(parameter, TyperOption | TyperArgument)
        yield "    " + " ".join(_facts(parameter))
    yield ""


def _facts(parameter: TyperOption | TyperArgument) -> Iterator[str]:
    yield "/".join(parameter.opts)
    if parameter.envvar:
        yield f"${parameter.envvar}"
    if parameter.default not in (None, ""):
        yield f"[{parameter.default}]"
    yield f" {parameter.help}"

"""The `twostroke` command. Text goes to stdout, everything else to stderr; see reporting.py."""

import dataclasses
import importlib.metadata
import json
import os
import sys
from typing import Annotated

# gRPC's own notes on connections that come and go are not for the user of a command line.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import typer
from rich.table import Table

from twostroke_client import chat as chat_repl
from twostroke_client import local, policy_cli
from twostroke_client.client import Client
from twostroke_client.output import guard_stdout
from twostroke_client.reporting import (
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    complain,
    reported,
    stderr,
    stdout,
    write_line,
)
from twostroke_client.terminal import show
from twostroke_client.token_table import show_tokens
from twostroke_client.values import DEFAULT_ADDRESS, GenerateOptions, Message, Prompt

app = typer.Typer(
    help="Talk to a Twostroke server, or start one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Their options are the supervisor's own, which is not imported before it is needed.
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)(local.serve)

Address = Annotated[
    str, typer.Option(envvar="TWOSTROKE_ADDRESS", help="The server: host:port or unix:PATH.")
]
System = Annotated[str, typer.Option(help="What the model is told before the conversation.")]
Model = Annotated[str | None, typer.Option(help="Refuse to talk to any other model than this.")]
Temperature = Annotated[float | None, typer.Option(help="0 always takes the most likely token.")]
TopK = Annotated[int | None, typer.Option(help="Choose among the k most likely tokens.")]
TopP = Annotated[float | None, typer.Option(help="Choose among the most likely share of tokens.")]
MinP = Annotated[
    float | None, typer.Option(help="Leave out tokens less likely than this share of the best.")
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same answer.")]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Above 1: avoid tokens of the prompt and the answer so far.")
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Above 0: avoid tokens of the answer so far.")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="Above 0: avoid them more, the more often they came.")
]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens to generate.")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on past the model's own end of the answer.")
]
Priority = Annotated[int | None, typer.Option(help="Higher goes first under policy priority.")]
Tenant = Annotated[str | None, typer.Option(help="On whose account; policy fair shares by it.")]
Timeout = Annotated[float | None, typer.Option(help="Seconds for a whole answer.")]


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, not as a question.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each piece.")
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(help="A line a token: its probability, and so many of the likeliest ones."),
    ] = None,
    system: System = "",
    address: Address = DEFAULT_ADDRESS,
    model: Model = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    max_tokens: MaxTokens = None,
    stop: Stop = None,
    ignore_eos: IgnoreEos = False,
    priority: Priority = None,
    tenant: Tenant = None,
    timeout: Timeout = None,
) -> None:
    """Answer one prompt, as it comes."""
    text = _read_prompt(prompt)
    options = GenerateOptions(
        model=model,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        max_tokens=max_tokens,
        stop=stop or [],
        ignore_eos=ignore_eos or None,
        logprobs=logprobs,
        priority=priority,
        tenant=tenant,
    )
    with reported(address, timeout), Client(address) as client:
        asked: Prompt = text if raw else _chat_prompt(system, text)
        with client.generate(asked, timeout_s=timeout, **options) as stream:
            if as_json:
                for piece in stream:
                    write_line(json.dumps(dataclasses.asdict(piece), ensure_ascii=False))
            elif logprobs is not None:
                show_tokens(stream, stdout(), stderr())
            else:
                show(stream, stdout(), stderr())


def _read_prompt(prompt: str) -> str:
    """What it says, or for - standard input; exits if that is not UTF-8."""
    data = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        complain(f"the prompt is not UTF-8: its byte {error.start} is {data[error.start]:#04x}")
        raise typer.Exit(EXIT_USAGE) from error


def _chat_prompt(system: str, text: str) -> list[Message]:
    said = [Message("system", system)] if system else []
    return [*said, Message("user", text)]


@app.command()
def chat(
    system: System = "",
    address: Address = DEFAULT_ADDRESS,
    model: Model = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    max_tokens: MaxTokens = None,
    priority: Priority = None,
    tenant: Tenant = None,
    timeout: Timeout = None,
) -> None:
    """Have a conversation: Ctrl-C stops an answer, Ctrl-D leaves."""
    options = GenerateOptions(
        model=model,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        max_tokens=max_tokens,
        priority=priority,
        tenant=tenant,
    )
    err = stderr()
    with reported(address, timeout), Client(address) as client:
        served = client.model_info()
        err.print(f"{served.name} on {served.device}. {chat_repl.HINT}", style="dim")
        chat_repl.converse(client, options, system=system, timeout_s=timeout, out=stdout(), err=err)


@app.command()
def status(
    address: Address = DEFAULT_ADDRESS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Print nothing if the server is ready.")
    ] = False,
) -> None:
    """Show what is served and how it fares. Exits with 3 if the server is not ready."""
    with reported(address), Client(address) as client:
        found = client.server_status()
        if not check:
            served = client.model_info() if found.ready else None
            facts = dataclasses.asdict(found) | (dataclasses.asdict(served) if served else {})
            if as_json:
                write_line(json.dumps(facts))
            else:
                stdout().print(_table(facts))
    if not found.ready:
        if check:
            complain(f"not ready: {found.reason}")
        raise typer.Exit(EXIT_UNAVAILABLE)


def _table(facts: dict[str, object]) -> Table:
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), _shown(name, value))
    return table


def _shown(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0%}" if name.endswith("_share") else f"{value:.3g}"
    return str(value)


app.command()(local.demo)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    local.restart
)
app.command()(local.drain)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)(local.replay)
app.add_typer(policy_cli.app, name="policy")
app.command(context_settings=policy_cli.passed_on, add_help_option=False)(policy_cli.simulate)


@app.command()
def version() -> None:
    """Print the version."""
    write_line(importlib.metadata.version("twostroke"))


def main() -> None:
    """Entry point of the console script."""
    guard_stdout()
    try:
        app()
    finally:
        sys.stdout.flush()  # the last chance to say that something could not be written

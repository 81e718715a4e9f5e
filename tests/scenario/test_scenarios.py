"""Stories about the scheduler, told by commands and what they must show.

A file holds comments (#), commands, and after each a rule and the lines that it shows. With
`pytest tests/scenario --rewrite` the lines become what is shown now; look at the difference.
"""

from pathlib import Path

import pytest

from tests.scenario.stage import Stage

RULE = "----"
STORIES = sorted(Path(__file__).parent.glob("*.txt"))


def play(story: str) -> str:
    """The story, with what each command shows today."""
    stage, told = Stage(), []
    for paragraph in story.strip().split("\n\n"):
        lines = paragraph.splitlines()
        head = lines[: lines.index(RULE)] if RULE in lines else lines
        commands = [line for line in head if not line.startswith("#")]
        if commands:
            (command,) = commands
            head = [*head, RULE, *stage.run(command)]
        told.append("\n".join(head))
    return "\n\n".join(told) + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_goes_as_it_is_told(path: Path, rewrite: bool) -> None:
    told = path.read_text()
    played = play(told)
    if rewrite:
        path.write_text(played)
        told = played
    assert played == told


def test_there_are_stories() -> None:
    assert len(STORIES) >= 12

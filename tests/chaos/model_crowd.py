"""A crowd at a real model: what is right is what the same instance answered while all was quiet."""

import random
from collections.abc import Mapping

from tests.support.crowd import Crowd
from twostroke_client import AsyncClient, Client

PROMPTS = 24
PROMPT_TOKENS_MAX = 120
TOKENS = 80
FIRST_ID = 5
"""Of the tiny model; what comes before are special tokens."""

Prompt = tuple[int, ...]


def quiet_answers(client: Client, chance: random.Random, vocab_size: int) -> dict[Prompt, Prompt]:
    """The greedy answers to some prompts, asked one after another."""
    answers = {}
    for _ in range(PROMPTS):
        count = chance.randint(1, PROMPT_TOKENS_MAX)
        prompt = tuple(chance.randrange(FIRST_ID, vocab_size) for _ in range(count))
        answer = client.complete(list(prompt), max_tokens=TOKENS, temperature=0, ignore_eos=True)
        answers[prompt] = tuple(answer.token_ids)
    return answers


class ModelCrowd(Crowd):
    """As Crowd, with the requests and tokens of `answers`."""

    def __init__(
        self, address: str, size: int, *, seed: int, answers: Mapping[Prompt, Prompt]
    ) -> None:
        super().__init__(address, size, seed=seed, vocab_size=0)
        self._answers = dict(answers)

    async def _somebody(self, client: AsyncClient, chance: random.Random) -> None:
        while not self._is_over.is_set():
            prompt = chance.choice(list(self._answers))
            self.ends[await self._ask(client, prompt)] += 1

    async def _ask(self, client: AsyncClient, prompt: Prompt) -> str:
        tokens: list[int] = []
        end = "nothing"
        stream = client.generate(list(prompt), max_tokens=TOKENS, temperature=0, ignore_eos=True)
        async with stream:
            async for delta in stream:
                assert delta.first_index == len(tokens), "a gap in the indices"
                tokens += delta.token_ids
                end = delta.finish.reason if delta.finish else end
        assert tuple(tokens) == self._answers[prompt]
        return end

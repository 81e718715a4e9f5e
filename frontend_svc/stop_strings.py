"""Stop strings: found across token borders, with as little text held back as possible.

The match that is complete first wins; of two that end at the same character, the longer one. That
makes the result a property of the text alone: it does not matter how the text was cut into tokens.

    stop strings  "###"  "#end"
    text          a  #  #  #  b
    held back     .  1  2  match: the text that goes out is "a"

The automaton is Aho and Corasick's: a state is the longest suffix of the text that begins some stop
string, so the state's depth is exactly what must be held back.
"""

from collections import deque
from collections.abc import Iterable

_ROOT = 0


class StopStrings:
    """The compiled stop strings of one request. Immutable; a `StopScanner` walks it."""

    def __init__(self, strings: Iterable[str]) -> None:
        self.children: list[dict[str, int]] = [{}]
        self.fallback: list[int] = [_ROOT]
        self.depth: list[int] = [0]
        self.match: list[str | None] = [None]
        for string in strings:
            self._insert(string)
        self._link()
        self.starts = frozenset(self.children[_ROOT])

    def _insert(self, string: str) -> None:
        assert string, "an empty stop string matches everywhere"
        node = _ROOT
        for character in string:
            node = self.children[node].get(character) or self._child(node, character)
        self.match[node] = string

    def _child(self, node: int, character: str) -> int:
        self.children.append({})
        self.fallback.append(_ROOT)
        self.depth.append(self.depth[node] + 1)
        self.match.append(None)
        child = len(self.children) - 1
        self.children[node][character] = child
        return child

    def _link(self) -> None:
        """Sets each node's fallback, its longest proper suffix in the tree; shallow nodes first."""
        nodes = deque(self.children[_ROOT].values())
        while nodes:
            node = nodes.popleft()
            for character, child in self.children[node].items():
                self.fallback[child] = self.step(self.fallback[node], character)
                nodes.append(child)
            if self.match[node] is None:
                self.match[node] = self.match[self.fallback[node]]

    def step(self, node: int, character: str) -> int:
        while True:
            child = self.children[node].get(character)
            if child is not None:
                return child
            if node == _ROOT:
                return _ROOT
            node = self.fallback[node]


class StopScanner:
    """Scans one text. After a match it must not be fed again."""

    __slots__ = ("_held", "_node", "_stops", "matched")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._node = _ROOT
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that cannot become part of a match any more; sets `matched` when one is full."""
        assert self.matched is None, "fed after a match"
        stops = self._stops
        node = self._node
        if node == _ROOT and stops.starts.isdisjoint(text):
            return text
        held = self._held + text
        for index in range(len(self._held), len(held)):
            node = stops.step(node, held[index])
            if (matched := stops.match[node]) is not None:
                self.matched, self._held = matched, ""
                return held[: index + 1 - len(matched)]
        self._node = node
        free = len(held) - stops.depth[node]
        self._held = held[free:]
        return held[:free]

    def finish(self) -> str:
        """The text that was held back, when no more comes."""
        held, self._held = self._held, ""
        return held

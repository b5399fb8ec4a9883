"""Which occurrence of a variable may be the last one before a point, over all paths through a program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Last(NamedTuple):
    """The occurrences that may be the last, and whether some path has none of them."""

    events: frozenset[int]
    through: bool


State = dict[int, Last]
"""For each key, what may have come last after a piece of code; a missing key has no occurrence in it."""

Links = set[tuple[int, int, int]]
"""(key, event, an event that may have come last before it)."""


class Flow:
    """The questions that a piece of code has for the code before it, and what it passes on, per exit.

    A piece ends normally by the exit ``"next"``, and otherwise by exits such as ``"break"`` and ``"return"``. A piece
    without the exit ``"next"`` never reaches its end. Pieces are joined once and never read again, so the work grows
    with the number of occurrences and not with the number of paths.
    """

    def __init__(self, links: Links) -> None:
        self.links = links
        self.asks: dict[int, list[int]] = {}
        self.exits: dict[str, State] = {"next": {}}

    @property
    def reachable(self) -> bool:
        """Whether the end of this piece is reached."""
        return "next" in self.exits

    def ask(self, key: int, event: int) -> None:
        """Link ``event`` to everything that may have come last."""
        if self.reachable:
            self._meet(key, [event], self.exits["next"])

    def record(self, key: int, event: int) -> None:
        """Record ``event`` as the last one."""
        if self.reachable:
            self.exits["next"][key] = Last(frozenset((event,)), False)

    def jump(self, name: str) -> None:
        """Leave by another exit."""
        self.add(name, self.take("next"))

    def may_jump(self, name: str) -> None:
        """Leave by another exit, or go on."""
        if self.reachable:
            self.add(name, dict(self.exits["next"]))

    def add(self, name: str, state: State | None) -> None:
        """Add a path to an exit; None adds no path."""
        if state is not None:
            self.exits[name] = _either(self.exits[name], state) if name in self.exits else state

    def take(self, name: str) -> State | None:
        """Close an exit, and return what led there."""
        return self.exits.pop(name, None)

    def then(self, other: Flow, name: str = "next") -> None:
        """Append ``other`` after an exit of this piece."""
        state = self.take(name)
        if state is None:
            return
        for key in state.keys() & other.asks.keys():
            self._meet(key, other.asks.pop(key), state)
        self._ask_all(other.asks)
        ways = [*(way for way in other.exits if way != "next"), *(["next"] if other.reachable else [])]
        for way in ways:  # the normal exit last, because it may write into ``state``
            self.add(way, _after(state if way == "next" else dict(state), other.exits[way]))

    def then_one_of(self, pieces: Iterable[Flow], name: str = "next") -> None:
        """Append one of several pieces."""
        merged = Flow(self.links)
        merged.exits = {}
        for piece in pieces:
            merged._ask_all(piece.asks)
            for way, state in piece.exits.items():
                merged.add(way, state)
        self.then(merged, name)

    def then_whatever_happens(self, other: Flow, raised: State) -> None:
        """Append ``other`` after every exit, which it then leaves by; ``raised`` leads to it and ends there."""
        entry = raised
        for state in self.exits.values():
            entry = _either(entry, state)
        for key, events in other.asks.items():
            self._meet(key, events, entry)
        after = other.take("next")
        self.exits = {} if after is None else {way: _after(state, after) for way, state in self.exits.items()}
        for way, state in other.exits.items():
            self.add(way, _after(dict(entry), state))

    def repeat(self, back: State | None) -> None:
        """Let the exit ``back`` lead to the beginning of this piece."""
        for key, last in (back or {}).items():
            for event in self.asks.get(key, ()):
                self.links.update((key, event, before) for before in last.events)
            for state in self.exits.values():
                old = state.get(key, Last(frozenset(), True))
                if old.through:
                    state[key] = Last(old.events | last.events, True)

    def _ask_all(self, asks: dict[int, list[int]]) -> None:
        """Take over the questions of another piece; the smaller set is merged into the larger."""
        if len(self.asks) < len(asks):
            self.asks, asks = asks, self.asks
        for key, events in asks.items():
            self.asks.setdefault(key, []).extend(events)

    def _meet(self, key: int, events: list[int], state: State) -> None:
        last = state.get(key)
        if last is not None:
            self.links.update((key, event, before) for event in events for before in last.events if event != before)
        if last is None or last.through:
            self.asks.setdefault(key, []).extend(events)


def anywhere(recorded: Iterable[tuple[int, int]]) -> State:
    """What may have come last if any of these (key, event) pairs, or none, was the last: for code that may raise."""
    events: dict[int, set[int]] = {}
    for key, event in recorded:
        events.setdefault(key, set()).add(event)
    return {key: Last(frozenset(several), True) for key, several in events.items()}


def _after(before: State, after: State) -> State:
    """Both, one after the other. May write into ``before``; loops over the smaller one."""
    if len(before) < len(after):
        joined = dict(after)
        for key, old in before.items():
            last = after.get(key)
            if last is None or last.through:
                joined[key] = old if last is None else Last(last.events | old.events, old.through)
        return joined
    for key, last in after.items():
        old = before.get(key) if last.through else None
        before[key] = last if old is None else Last(last.events | old.events, old.through)
    return before


def _either(one: State, other: State) -> State:
    small, joined = (one, dict(other)) if len(one) < len(other) else (other, dict(one))
    missing = Last(frozenset(), True)
    partly = [key for key, last in joined.items() if not last.through and key not in small]
    joined.update((key, Last(joined[key].events, True)) for key in partly)
    for key, last in small.items():
        old = joined.get(key, missing)
        joined[key] = Last(last.events | old.events, last.through or old.through)
    return joined

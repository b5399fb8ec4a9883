"""Made-up sentences with dependency trees, in CoNLL-U: the tree, not the neighbours, determines a verb's form.

A verb takes the form that its own auxiliary requires. Without an auxiliary it is in the past tense if it has its own
``yesterday``, and otherwise agrees with its own subject. Relative clauses, which have their own subjects, auxiliaries
and adverbs, separate a verb from the words that determine its form:

    has the farmer that the singers near the lake are call help the guests yesterday ?
        call: VBG, for ``are`` is its auxiliary; help: VBN, for ``has`` is.

The relations are those of Universal Dependencies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

PEOPLE = ("farmer", "singer", "teacher", "doctor", "sailor", "painter", "baker", "guest", "driver", "pilot")
PLACES = ("lake", "house", "river", "garden", "tower", "forest")
VERBS = ("follow", "help", "greet", "visit", "answer", "call", "thank", "join", "trust", "warn")
ENDINGS = {"VB": "", "VBP": "", "VBZ": "s", "VBD": "ed", "VBN": "ed", "VBG": "ing"}
AUXILIARIES = {"VB": ("will", "will", "will"), "VBN": ("have", "has", "have"), "VBG": ("be", "is", "are")}
"""For each form the auxiliaries that require it: the lemma, the singular and the plural."""


@dataclass
class Word:
    """A word with its dependents to the left and to the right of it, each a (relation, word)."""

    form: str
    lemma: str
    upos: str
    xpos: str = "_"
    left: list[tuple[str, Word]] = field(default_factory=list)
    right: list[tuple[str, Word]] = field(default_factory=list)

    def in_order(self, relation: str = "root", head: Word | None = None) -> Iterator[tuple[Word, str, Word | None]]:
        """Every word of this subtree in spoken order: the word, its relation to its head, and the head."""
        for side in (self.left, self.right):
            if side is self.right:
                yield self, relation, head
            for name, word in side:
                yield from word.in_order(name, self)


def treebank(sentences: int, rng: random.Random) -> str:
    """This many sentences in CoNLL-U."""
    return "".join(written(sentence(rng)) for _ in range(sentences))


def written(root: Word) -> str:
    """A tree as CoNLL-U."""
    words = list(root.in_order())
    number = {id(word): place for place, (word, *_) in enumerate(words, 1)} | {id(None): 0}
    lines = [
        f"{number[id(word)]}\t{word.form}\t{word.lemma}\t{word.upos}\t{word.xpos}\t_\t{number[id(head)]}\t{relation}\t_\t_"
        for word, relation, head in words
    ]
    return "\n".join([f"# text = {' '.join(word.form for word, *_ in words)}", *lines, "\n"])


def sentence(rng: random.Random) -> Word:
    """A statement, or a question that begins with the auxiliary."""
    plural = rng.random() < 0.5
    subject = someone(plural, rng, clauses=1)
    verb = verb_of(plural, rng, question=rng.random() < 0.3, subject=subject)
    verb.right.insert(0, ("obj", someone(rng.random() < 0.5, rng)))
    return verb


def someone(plural: bool, rng: random.Random, clauses: int = 0) -> Word:
    """A noun phrase, usually with a relative clause where one is allowed."""
    noun = _noun(rng.choice(PEOPLE), plural)
    if rng.random() < 0.3:
        place = _noun(rng.choice(PLACES), rng.random() < 0.5)
        place.left.insert(0, ("case", Word("near", "near", "ADP")))
        noun.right.append(("nmod", place))
    if clauses and rng.random() < 0.8:
        noun.right.append(("acl:relcl", _relative_clause(plural, rng)))
    return noun


def verb_of(plural: bool, rng: random.Random, *, question: bool, subject: Word) -> Word:
    """A verb in the form that its auxiliary or adverb requires, or that agrees with its subject."""
    form = rng.choice([*AUXILIARIES] if question else [*AUXILIARIES, "VBD", "present", "present", "present"])
    form = ("VBP" if plural else "VBZ") if form == "present" else form
    lemma = rng.choice(VERBS)
    verb = Word(lemma + ENDINGS[form], lemma, "VERB", form, [("nsubj", subject)])
    if form in AUXILIARIES:
        name, *by_number = AUXILIARIES[form]
        verb.left.insert(0 if question else 1, ("aux", Word(by_number[plural], name, "AUX")))
    if rng.random() < 0.3:
        verb.left.append(("advmod", Word("often", "often", "ADV")))
    if form == "VBD":
        verb.right.append(("advmod", Word("yesterday", "yesterday", "ADV")))
    return verb


def _noun(lemma: str, plural: bool) -> Word:
    return Word(lemma + "s" * plural, lemma, "NOUN", left=[("det", Word("the", "the", "DET"))])


def _relative_clause(plural: bool, rng: random.Random) -> Word:
    """``that <verb> someone``, which agrees with the noun before it, or ``that someone <verb>``."""
    that = Word("that", "that", "PRON")
    if rng.random() < 0.5:
        verb = verb_of(plural, rng, question=False, subject=that)
        verb.right.insert(0, ("obj", someone(rng.random() < 0.5, rng)))
        return verb
    other = rng.random() < 0.5
    verb = verb_of(other, rng, question=False, subject=someone(other, rng))
    verb.left.insert(0, ("obj", that))
    return verb

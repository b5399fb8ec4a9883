"""Subwords: byte-pair encoding over bytes, so that every text has ids and every list of ids is a text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

PAD, START, END = 0, 1, 2
SPECIAL = 3
BYTES = 256
ENCODED_AT_ONCE = 10_000


class Vocabulary:
    """Ids of padding, start and end, followed by those of the subwords.

    The first three have no text: a line that reads ``</s>`` is an ordinary line.

    Args:
        text: the JSON of a tokenizer.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokenizer = Tokenizer.from_str(text)

    @classmethod
    def load(cls, data: Path) -> Self:
        """The vocabulary of a folder that ``prepare`` wrote."""
        return cls((data / "vocabulary.json").read_text(encoding="utf-8"))

    @classmethod
    def train(cls, lines: Iterable[str], size: int) -> Self:
        """Learn the most frequent merges of ``lines``, up to ``size`` ids.

        Raises:
            ValueError: ``size`` has no room for the 256 bytes and the three special ids.
        """
        if size < BYTES + SPECIAL:
            raise ValueError(f"a vocabulary must have at least {BYTES + SPECIAL} ids, got {size}")
        tokenizer = Tokenizer(BPE())
        tokenizer.normalizer = NFC()
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
        tokenizer.decoder = ByteLevelDecoder()
        alphabet = sorted(ByteLevel.alphabet())
        trainer = BpeTrainer(vocab_size=size - SPECIAL, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(lines, trainer)
        return cls(tokenizer.to_str())

    @property
    def fingerprint(self) -> str:
        """A hash that is equal only for equal vocabularies."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size() + SPECIAL

    def encode(self, lines: Sequence[str]) -> Iterator[list[int]]:
        """The ids of each line, without start and end."""
        for start in range(0, len(lines), ENCODED_AT_ONCE):  # encodings take much more memory than their ids
            for encoding in self._tokenizer.encode_batch(list(lines[start : start + ENCODED_AT_ONCE])):
                yield [i + SPECIAL for i in encoding.ids]

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """The text of each list of ids; invalid UTF-8 becomes U+FFFD, and line breaks become spaces."""
        inner = [[i - SPECIAL for i in row if i >= SPECIAL] for row in ids]
        return [" ".join(text.split()) for text in self._tokenizer.decode_batch(inner)]

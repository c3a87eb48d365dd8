"""Which prefix of a prompt some held KV was computed for: hashes of token ids travel with the parameters.

vLLM pulls by block ids alone. A history that was edited, or an answer whose text tokenizes to other tokens
than the engine sampled, would bring KV of other tokens, and so a wrong answer with HTTP 200.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise

import xxhash

Mark = tuple[int, str]  # a count of tokens, and the hash of that many first tokens

MOST_STEPS = 64  # marks within an answer: they travel in a header of JSON with every turn


def marks(tokens: Sequence[int], counts: Iterable[int]) -> list[Mark]:
    """The mark of the first `count` tokens, for each count between 1 and the number of tokens."""
    ids = array("I", tokens)
    hasher = xxhash.xxh3_128()
    found = []
    for before, count in pairwise([0, *sorted({count for count in counts if 0 < count <= len(ids)})]):
        hasher.update(ids[before:count].tobytes())
        found.append((count, hasher.hexdigest()))
    return found


def steps(prompt: int, held: int, block: int) -> set[int]:
    """Where to put marks: at the prompt's end, at the held tokens' end, and at block boundaries between them,
    since text that is tokenized anew often differs near the end of an answer alone."""
    each = block * max(1, -(-(held - prompt) // (block * MOST_STEPS)))
    return {prompt, held, *range((prompt // each + 1) * each, held, each)}


def matching_prefix(prompt: Sequence[int], given: object) -> int:
    """How many of the first tokens of `prompt` are those of the longest mark that fits; 0 if none does.

    `given` came in with a request: what is no list of marks fits nothing.
    """
    wanted: dict[int, str] = {}
    for entry in given if isinstance(given, list) else ():
        match entry:
            case [int(count), str(digest)]:
                wanted[count] = digest
    return max((count for count, digest in marks(prompt, wanted) if wanted[count] == digest), default=0)

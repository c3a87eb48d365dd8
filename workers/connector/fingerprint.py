"""Which prefix of a prompt some held KV was computed for: hashes of token ids travel with the parameters.

vLLM pulls by block ids alone. A history that was edited, or an answer whose text tokenizes to other tokens
than the engine sampled, would bring KV of other tokens, and so a wrong answer with HTTP 200.
"""

from array import array
from collections.abc import Sequence

import xxhash

Mark = tuple[int, str]  # a count of tokens, and the hash of the first so many


def mark(tokens: Sequence[int], count: int) -> Mark:
    """The mark of the first `count` tokens; of all, if there are fewer."""
    head = array("I", tokens[:count])
    return len(head), xxhash.xxh3_128_hexdigest(head.tobytes())


def matching_prefix(prompt: Sequence[int], marks: object) -> int:
    """How many of the first tokens of `prompt` are those of the longest mark that fits; 0 if none does.

    `marks` came in with a request: what is no list of marks fits nothing.
    """
    longest = 0
    for entry in marks if isinstance(marks, list) else ():
        match entry:
            case [int(count), str(digest)] if longest < count <= len(prompt):
                longest = count if mark(prompt, count)[1] == digest else longest
    return longest

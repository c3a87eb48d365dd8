"""A chat with the small model whose greedy answers do not depend on how a processor rounds.

bfloat16 on AMX, bfloat16 without it, and float32 differ by about .1 in a token's log-probability. In most
answers two tokens are closer than that: "What is the capital of France?" begins with such a pair.
In these answers each token leads the next by .9 or more, so tests may state the text.
"""

CAPITAL_QUESTION = "What is the capital of Japan?"
CAPITAL_ANSWER = "The capital of Japan is Tokyo."
CHAT = {
    CAPITAL_QUESTION: CAPITAL_ANSWER,
    "And of Germany?": "The capital of Germany is Berlin.",
    "And of Italy?": "The capital of Italy is Rome.",
}

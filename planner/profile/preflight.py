"""What must hold before anything is measured: paths can be forced, and each does what its name says."""

import secrets

from planner.profile.client import Frontend, MeasuredAnswer, MeasuredCluster, TurnError
from planner.profile.figures import BASE
from planner.profile.records import ProfileError
from planner.profile.words import Words
from ppd.core.cells import CONTEXT_TOKENS, SHAPES, Cell
from ppd.core.names import Route
from ppd.core.placement import parse_placement

# A conversation that D mostly wrote itself: only from there can P have its KV.
_ASKED_TOKENS = 32
_SHORT_TOKENS, _ANSWERED_TOKENS = 16, 320
_PULLED = 0.6  # of the answer: P holds at least so much of it after a pull, whole blocks that they are
_DEADLINE_S = 120.0


async def warm_up(frontend: Frontend, words: Words) -> None:
    """Learn the tokenizer, and send each path one conversation, so that handshakes and first compilations
    are in no figure. Raises ProfileError."""

    async def count(text: str) -> int:
        system, user = words.start(), text
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return (await frontend.ask(messages, 1, secrets.token_hex(8), _DEADLINE_S)).prompt_tokens

    try:
        await words.calibrate(count)
    except TurnError as error:
        raise ProfileError(f"the frontend does not answer a plain chat: {error}") from error
    for path in BASE:
        try:
            answer = await _second_turn(frontend, words, _SHORT_TOKENS, path)
            failed = "" if answer.route == path else f"went {answer.route} ({answer.reason})"
        except TurnError as error:
            failed = str(error)
        if failed:
            raise ProfileError(
                f"a turn that was forced to {path} failed: {failed}. To force paths the frontend needs "
                "PPD_ADMIN_KEY in its environment, and this command the same"
            )


async def pulls_back(frontend: Frontend, words: Words) -> str:
    """Why pull-back cannot be measured; empty if it can. A long answer is asked for only where it matters."""
    for answered in (_SHORT_TOKENS, _ANSWERED_TOKENS):
        try:
            answer = await _second_turn(frontend, words, answered, Route.P_D_PULLBACK)
        except TurnError as error:
            return str(error)
        if answer.route != Route.P_D_PULLBACK:
            return f"went {answer.route} ({answer.reason})"
    if 0 <= answer.cached_tokens < _PULLED * _ANSWERED_TOKENS:
        return f"P held only {answer.cached_tokens} tokens after it"
    return ""


async def _second_turn(frontend: Frontend, words: Words, answered: int, path: Route) -> MeasuredAnswer:
    """The second answer of a conversation whose first had `answered` tokens. Raises TurnError."""
    session = secrets.token_hex(8)
    system, user = words.opening(_ASKED_TOKENS)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    first = await frontend.ask(messages, answered, session, _DEADLINE_S)
    messages.append({"role": "assistant", "content": first.text})
    messages.append({"role": "user", "content": words.message(_ASKED_TOKENS)})
    return await frontend.ask(messages, 2, session, _DEADLINE_S, path)


def check(cluster: MeasuredCluster) -> None:
    """Raises ProfileError for a placement with nothing to decide."""
    placement = parse_placement(cluster.placement)
    if not placement.prefill or not placement.decode:
        raise ProfileError(f"{cluster.model} runs on {cluster.placement}: there is no path to choose")


def fits(cell: Cell, turns: int, max_model_len: int) -> bool:
    """Whether its conversations stay within the model's context, with a little to spare."""
    n_in, n_out = SHAPES[cell.ratio]
    longest = CONTEXT_TOKENS[cell.context] + (turns - 1) * (n_in + n_out)
    return not max_model_len or longest * 1.02 + 64 <= max_model_len

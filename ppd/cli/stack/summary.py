"""What is printed when a stack serves."""

from ppd.cli.stack.state import StackState

_TEXT = """\
endpoint   {endpoint}/v1        model {model}        placement {placement}
logs       {log_dir}

curl -N {endpoint}/v1/chat/completions -H 'content-type: application/json' -d '
  {{"model": "{model}", "stream": true,
    "messages": [{{"role": "user", "content": "What is the capital of Japan?"}}]}}'

from openai import OpenAI
client = OpenAI(base_url="{endpoint}/v1", api_key="none")
answer = client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": "What is the capital of Japan?"}}])
print(answer.choices[0].message.content)

`ppd chat` talks to it, `ppd status` shows it, {stop}."""


def summary(state: StackState, *, in_background: bool = False) -> str:
    """How to use the stack, where its logs are, and how to stop it."""
    return _TEXT.format(
        endpoint=state.endpoint,
        model=state.model,
        placement=state.placement,
        log_dir=state.log_dir,
        stop="`ppd down` stops it" if in_background else "Ctrl-C stops it",
    )

"""Conversations in the background, for as long as the block lasts."""

import threading
from dataclasses import dataclass, field
from types import TracebackType

import openai


@dataclass
class Load:
    """`chats` conversations at once, each of short turns, over and over; what failed is in `failures`."""

    url: str
    model: str
    chats: int = 3
    turns: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._talk, args=(i,), daemon=True) for i in range(self.chats)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _talk(self, which: int) -> None:
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)
        chat = 0
        while not self._over.is_set():
            chat += 1
            messages = [{"role": "user", "content": f"chat {which}.{chat}: " + "tell me of the sea. " * 40}]
            for _ in range(4):
                if self._over.is_set():
                    return
                try:
                    answer = self._turn(client, messages)
                except (openai.OpenAIError, AssertionError) as error:
                    with self._lock:
                        self.failures.append(f"{type(error).__name__}: {error}")
                    self._over.wait(0.2)
                    break
                with self._lock:
                    self.turns += 1
                messages += [
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": "and then?"},
                ]

    def _turn(self, client: openai.OpenAI, messages: list[dict[str, str]]) -> str:
        stream = client.chat.completions.create(
            model=self.model,
            messages=messages,
            stream=True,
            max_tokens=32,  # type: ignore[call-overload]
        )
        answer, finish = "", None
        for chunk in stream:
            for choice in chunk.choices:
                answer += choice.delta.content or ""
                finish = choice.finish_reason or finish
        assert finish, "the stream ended without a finish_reason"
        return answer

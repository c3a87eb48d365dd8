"""The names that an engine answers to: its model, second names of it, and adapters loaded at run time."""

from typing import Any

from workers.sim.request import BadRequestError


class Names:
    """The model's own name comes first, as in vLLM's list."""

    def __init__(self, model: str, second_names: tuple[str, ...], max_model_len: int) -> None:
        self._model = model
        self._second_names = tuple(name for name in second_names if name != model)
        self._adapters: dict[str, str] = {}  # name -> path
        self._max_model_len = max_model_len

    def check(self, name: str) -> str:
        """The name that answers carry. Raises BadRequestError (404) where nothing has this name."""
        if not name or name == self._model or name in self._second_names or name in self._adapters:
            return name or self._model
        raise BadRequestError(f"The model `{name}` does not exist.", 404, "NotFoundError")

    def adapter(self, name: str) -> str:
        """The adapter of this name; empty where it is the model itself."""
        return name if name in self._adapters else ""

    def listed(self) -> list[dict[str, Any]]:
        """As `/v1/models` has them."""
        own = [self._card(name, self._model, None) for name in (self._model, *self._second_names)]
        return own + [self._card(name, path, self._model) for name, path in self._adapters.items()]

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "ppd-sim",
            "root": root,
            "parent": parent,
            "max_model_len": self._max_model_len if parent is None else None,
        }

    def load(self, fields: Any) -> str:
        """Raises BadRequestError, as vLLM does."""
        name, path = _text(fields, "lora_name"), _text(fields, "lora_path")
        if not name or not path:
            raise BadRequestError(
                "Both 'lora_name' and 'lora_path' must be provided.", 400, "InvalidUserInput"
            )
        if name in self._adapters and not fields.get("load_inplace"):
            raise BadRequestError(
                f"The lora adapter '{name}' has already been loaded.", 400, "InvalidUserInput"
            )
        self._adapters[name] = path
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, fields: Any) -> str:
        """Raises BadRequestError, as vLLM does."""
        name = _text(fields, "lora_name")
        if not name:
            raise BadRequestError("'lora_name' needs to be provided to unload.", 400, "InvalidUserInput")
        if name not in self._adapters:
            raise BadRequestError(f"The lora adapter '{name}' cannot be found.", 404, "NotFoundError")
        del self._adapters[name]
        return f"Success: LoRA adapter '{name}' removed successfully."


def _text(fields: Any, name: str) -> str:
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, str) else ""

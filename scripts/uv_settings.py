"""Print pip's settings as uv's, as `export` lines for a shell: the package index, certificates, and the like.

pip reads them from PIP_... and its configuration files. What the environment already sets for uv wins.
"""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

# Where distributions keep the certificates that the machine trusts.
_SYSTEM_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_SECTIONS = (":env:", "install", "global")  # the first that has a setting wins, as in pip


def pip_settings(listed: str) -> dict[str, str]:
    """`pip config list` as one mapping, without sections."""
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        if section in sections:
            sections[section][name.removeprefix("default-")] = str(ast.literal_eval(value))
    merged: dict[str, str] = {}
    for section in reversed(_SECTIONS):
        merged |= sections[section]
    return merged


def _is_on(value: str) -> bool:
    return value.lower() in ("1", "true", "yes", "on", "y", "t")


def _exists(link: str) -> bool:
    """uv fails on a folder that is missing; pip passes over it."""
    return "://" in link or Path(link).expanduser().exists()


def uv_settings(pip: dict[str, str]) -> dict[str, str]:
    """The environment that has uv do what pip is configured to do."""
    found: dict[str, str] = {}
    for name, variable in {
        "index-url": "UV_DEFAULT_INDEX",
        "trusted-host": "UV_INSECURE_HOST",
        "timeout": "UV_HTTP_TIMEOUT",
        "client-cert": "SSL_CLIENT_CERT",
        "proxy": "ALL_PROXY",
        "keyring-provider": "UV_KEYRING_PROVIDER",
    }.items():
        if value := " ".join(pip.get(name, "").split()):
            found[variable] = value
    if extra := pip.get("extra-index-url", "").split():
        # pip takes the best version that any index has; uv looks at the first that has the name.
        found |= {"UV_INDEX": " ".join(extra), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    if links := [link for link in pip.get("find-links", "").split() if _exists(link)]:
        found["UV_FIND_LINKS"] = ",".join(links)
    if _is_on(pip.get("no-index", "")):
        found["UV_OFFLINE"] = "1"
    if _is_on(pip.get("no-cache-dir", "")):
        found["UV_NO_CACHE"] = "1"
    if certificates := pip.get("cert"):
        found["SSL_CERT_DIR" if Path(certificates).is_dir() else "SSL_CERT_FILE"] = certificates
    elif any(map(os.path.exists, _SYSTEM_CERTIFICATES)):
        found["UV_SYSTEM_CERTS"] = "1"
    return found


def main() -> None:
    pip = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    for name, value in uv_settings(pip_settings(listed)).items():
        if name not in os.environ:
            print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()

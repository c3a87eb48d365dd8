"""A model hub that refuses or grants as a test wants."""

import json
from http.server import BaseHTTPRequestHandler


class FakeHub(BaseHTTPRequestHandler):
    """Answers as told: a status and an error code; a model's files where asked for its information."""

    status, code, message = 200, "", ""

    def do_HEAD(self) -> None:
        self.send_response(self.status)
        if self.code:
            self.send_header("X-Error-Code", self.code)
        if self.message:
            self.send_header("X-Error-Message", self.message)
        self.send_header("ETag", '"x"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        files = [("a.safetensors", 3_000), ("b.safetensors", 4_000), ("c.bin", 9_000), ("x/d.safetensors", 5)]
        body = json.dumps(
            {"id": "org/model", "siblings": [{"rfilename": name, "size": size} for name, size in files]}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

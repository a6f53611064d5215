"""A proxy before PostgreSQL that loses COMMITs or their answers."""

from __future__ import annotations

import re
import socket
import threading

_COMMIT = re.compile(rb"COMMIT(?!TED)")


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self.server = (host, port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lose = ""  # "request" or "reply": of the next COMMIT
        self.lost = threading.Event()
        self.replies = b""
        threading.Thread(target=self._listen, daemon=True).start()

    def arm(self, what: str) -> None:
        self.lost.clear()
        self.lose = what

    def trips(self) -> int:
        """How often the server has been ready for the next query."""
        return len(re.findall(rb"Z\x00\x00\x00\x05[ITE]", self.replies))

    def close(self) -> None:
        self.listener.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            _Link(self, client, socket.create_connection(self.server))


class _Link:
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.awaits = False  # the response to a COMMIT, which the test drops
        for work in (self._up, self._down):
            threading.Thread(target=work, daemon=True).start()

    def _cut(self) -> None:
        for s in (self.client, self.server):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()

    def _up(self) -> None:
        try:
            while data := self.client.recv(65536):
                if self.proxy.lose and _COMMIT.search(data):
                    what, self.proxy.lose = self.proxy.lose, ""
                    if what == "request":
                        self.proxy.lost.set()
                        break
                    self.awaits = True
                self.server.sendall(data)
        except OSError:
            pass
        if not self.awaits:
            self._cut()

    def _down(self) -> None:
        seen = b""
        try:
            while data := self.server.recv(65536):
                if self.awaits:
                    seen += data
                    if b"COMMIT\0" in seen:  # it is done
                        self.proxy.lost.set()
                        break
                    continue
                self.proxy.replies += data
                self.client.sendall(data)
        except OSError:
            pass
        self._cut()

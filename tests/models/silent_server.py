"""A way to a PostgreSQL server that can fall silent: connections stay, answers do not come."""

import selectors
import socket
import threading
from typing import Self

from sqlalchemy import URL


class SilentServer:
    def __init__(self, url: URL) -> None:
        self._goal = (url.host or "", url.port or 0)
        self._door = socket.create_server(("127.0.0.1", 0))
        port = self._door.getsockname()[1]
        self.url = url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        self._is_silent = threading.Event()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._pass_on)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._thread.join()
        self._door.close()

    def fall_silent(self) -> None:
        self._is_silent.set()

    def speak_again(self) -> None:
        self._is_silent.clear()

    def _pass_on(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._door, selectors.EVENT_READ, None)
            while not self._is_closed.is_set():
                if self._is_silent.is_set():
                    self._is_closed.wait(0.01)
                    continue
                for key, _ in waiting.select(0.05):
                    if key.data is None:
                        self._let_in(waiting)
                    else:
                        self._carry(waiting, key)
            for key in list(waiting.get_map().values()):
                if key.data is not None:
                    key.data[0].close()

    def _let_in(self, waiting: selectors.BaseSelector) -> None:
        client, _ = self._door.accept()
        server = socket.create_connection(self._goal)
        waiting.register(client, selectors.EVENT_READ, (client, server))
        waiting.register(server, selectors.EVENT_READ, (server, client))

    def _carry(self, waiting: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        source, target = key.data
        if source.fileno() < 0:
            return  # closed a moment ago, with its other end
        try:
            if part := source.recv(65536):
                target.sendall(part)
                return
        except OSError:
            pass
        for end in (source, target):
            waiting.unregister(end)
            end.close()

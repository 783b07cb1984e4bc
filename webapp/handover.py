"""Taking a connection away from gunicorn, once it has sent the head of an answer.

A thread of gunicorn serves a request from its beginning to its end, so a stream that lasts
an hour would hold one for an hour. Here the descriptor of the connection is copied, and a
dead one is put in the place of the original: gunicorn finds that its client has left and
tidies up after it, while the copy lives on elsewhere.

Where that can't be done (another server, TLS in this process, HTTP/2) a thread stays and
passes on what a pair of sockets brings. It costs a thread, and behaves the same.
"""

import os
import socket
import ssl
from collections.abc import Callable, Generator
from typing import Any, TypeGuard

TakeOver = Callable[[socket.socket, bool], None]  # the connection, and whether it is chunked


class Handover:
    """The body of an answer: its beginning, and then whatever `take_over` sends.

    `give_up` is called if it does not come to that.
    """

    def __init__(
        self, environ: dict[str, Any], first: bytes, take_over: TakeOver, give_up: Callable[[], Any]
    ) -> None:
        self._environ = environ
        self._take_over = take_over
        self._give_up: Callable[[], Any] | None = give_up
        self._body = self._parts(first)

    def __iter__(self) -> "Handover":
        return self

    def __next__(self) -> bytes:
        return next(self._body)

    def close(self) -> None:
        self._body.close()
        if self._give_up is not None:
            self._give_up()
            self._give_up = None

    def _parts(self, first: bytes) -> Generator[bytes, None, None]:
        yield first  # with it goes the head
        connection = self._environ.get("gunicorn.socket")
        protocol = self._environ.get("SERVER_PROTOCOL", "")
        self._give_up = None
        if _can_be_taken(connection) and protocol in ("HTTP/1.0", "HTTP/1.1"):
            self._take_over(_taken_from(connection), protocol == "HTTP/1.1")
            return
        near, far = socket.socketpair()
        self._take_over(far, False)
        with near:
            while chunk := near.recv(65536):
                yield chunk


def _can_be_taken(connection: Any) -> TypeGuard[socket.socket]:
    return isinstance(connection, socket.socket) and not isinstance(connection, ssl.SSLSocket)


def _taken_from(connection: socket.socket) -> socket.socket:
    taken = socket.socket(fileno=os.dup(connection.fileno()))
    dead, other_end = socket.socketpair()
    os.dup2(dead.fileno(), connection.fileno())
    dead.close()
    other_end.close()
    return taken

"""Between a client and one server: whatever a dishonest server or a broken network may do."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import grpc

__all__ = [
    "ByteRelay",
    "MessageRelay",
    "Refusal",
    "Spoil",
    "SpoilBytes",
    "relaying",
    "relaying_bytes",
]

_BIG = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

#: Given the short name of a call and the encoded answers of the honest server, gives the answers
#: that the client gets.
Spoil = Callable[[str, Iterator[bytes]], Iterable[bytes]]
#: Given what the server sent on a connection so far (bytes) and the next piece, gives the pieces
#: that the client gets; None ends the connection.
SpoilBytes = Callable[[int, bytes], "list[bytes] | None"]


class Refusal(Exception):
    """Raised by a ``Spoil`` to end a call with a status, a text and trailers of its own."""

    def __init__(
        self, code: grpc.StatusCode, text: str, trailers: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.trailers = trailers


class MessageRelay(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """A gRPC server that hands every call on, and its answers to ``spoil``.

    Attributes:
        address: HOST:PORT of the relay.
        spoil: what is done to answers; may be changed at any time.
        calls: short names of the calls that came.
    """

    def __init__(self, target: str, spoil: Spoil) -> None:
        self.spoil = spoil
        self.calls: list[str] = []
        self._channel = grpc.insecure_channel(target, options=_BIG)
        self._server = grpc.server(ThreadPoolExecutor(16), handlers=[self], options=_BIG)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        name = method.rpartition("/")[2]

        def relay(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            self.calls.append(name)
            # Without serializers bytes stay bytes.
            call: Any = self._channel.stream_stream(method, None, None)(requests, timeout=60)
            try:
                yield from self.spoil(name, call)
            except Refusal as refusal:
                context.set_trailing_metadata(refusal.trailers)
                context.abort(refusal.code, refusal.text)
            except grpc.RpcError as error:
                context.set_trailing_metadata(error.trailing_metadata() or ())
                context.abort(error.code(), error.details())
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(relay)

    def close(self) -> None:
        """End all calls."""
        self._server.stop(0).wait(10)
        self._channel.close()


@contextmanager
def relaying(target: str, spoil: Spoil) -> Iterator[MessageRelay]:
    """Relay calls to ``target`` while the block runs."""
    relay = MessageRelay(target, spoil)
    try:
        yield relay
    finally:
        relay.close()


class ByteRelay:
    """A TCP relay that hands what the server sends to ``spoil``.

    Attributes:
        address: HOST:PORT of the relay.
    """

    def __init__(self, target: str, spoil: SpoilBytes) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._spoil = spoil
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target, 10)
            except OSError:
                return
            server.settimeout(None)
            self._open += [client, server]
            for work in (self._pump_up, self._pump_down):
                threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _pump_up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while piece := client.recv(1 << 16):
                server.sendall(piece)
        _end(client, server)

    def _pump_down(self, client: socket.socket, server: socket.socket) -> None:
        n_bytes = 0
        with suppress(OSError):
            while piece := server.recv(1 << 16):
                spoiled = self._spoil(n_bytes, piece)
                n_bytes += len(piece)
                if spoiled is None:
                    break
                for part in spoiled:
                    client.sendall(part)
        _end(client, server)

    def close(self) -> None:
        """End all connections."""
        _end(self._listener, *self._open)


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextmanager
def relaying_bytes(target: str, spoil: SpoilBytes) -> Iterator[ByteRelay]:
    """Relay bytes to ``target`` while the block runs."""
    relay = ByteRelay(target, spoil)
    try:
        yield relay
    finally:
        relay.close()


# --- what can be done to messages --------------------------------------------------------------


def flip(messages: Iterator[bytes]) -> Iterator[bytes]:
    """Change some bits, evenly spread over the longest message."""
    held = list(messages)
    longest = max(range(len(held)), key=lambda n: len(held[n]))
    data = bytearray(held[longest])
    for place in range(1, 8):
        data[place * len(data) // 8] ^= 1
    held[longest] = bytes(data)
    yield from held


def drop_first(messages: Iterator[bytes]) -> Iterator[bytes]:
    """Leave the first message out."""
    yield from list(messages)[1:]


def drop_all(messages: Iterator[bytes]) -> Iterator[bytes]:
    """Answer nothing, successfully."""
    list(messages)
    yield from ()


def truncate(messages: Iterator[bytes]) -> Iterator[bytes]:
    """Cut the end of the longest message off."""
    held = list(messages)
    longest = max(range(len(held)), key=lambda n: len(held[n]))
    held[longest] = held[longest][:-3]
    yield from held


def repeat(messages: Iterator[bytes]) -> Iterator[bytes]:
    """Send every message twice."""
    for message in messages:
        yield message
        yield message


def reverse(messages: Iterator[bytes]) -> Iterator[bytes]:
    """Send the messages in the opposite order, or a lone one with its halves exchanged."""
    held = list(messages)
    if len(held) == 1:
        half = len(held[0]) // 2
        held = [held[0][half:] + held[0][:half]]
    yield from reversed(held)


def garbage(messages: Iterator[bytes]) -> Iterator[bytes]:
    """Send noise of the right length."""
    source = random.Random(7)
    for message in messages:
        yield source.randbytes(len(message))


def oversize(messages: Iterator[bytes]) -> Iterator[bytes]:
    """Send a message that is longer than any may be."""
    list(messages)
    yield bytes(8 << 20)


def endless(messages: Iterator[bytes]) -> Iterator[bytes]:
    """Send empty messages and never end."""
    list(messages)
    while True:
        yield b""
        time.sleep(0.01)


def late(messages: Iterator[bytes]) -> Iterator[bytes]:
    """Send the right messages after two seconds."""
    held = list(messages)
    time.sleep(2)
    yield from held

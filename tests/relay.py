"""A TCP relay that can be cut or late, before the API server or several replicas: TLS passes through it untouched."""

import contextlib
import itertools
import socket
import threading
import time


class Relay:
    """`address` is what others are told instead of a target's `host:port`; connections go to the targets in turn."""

    def __init__(self, *targets: str, delay: float = 0.0) -> None:
        """`delay`: seconds by which what a target says comes later."""
        parts = [target.rpartition(":") for target in targets]
        self._targets = itertools.cycle([(host, int(port)) for host, _, port in parts])
        self._cut = False
        self._delay = delay
        self._open: list[socket.socket] = []
        self.address = "127.0.0.1:0"
        self.listen()

    def listen(self) -> None:
        """Take connections, again after `close`."""
        host, _, port = self.address.rpartition(":")
        self._listener = socket.create_server((host, int(port)))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Lets nothing pass from now on, in no direction; connections stay open without a word."""
        self._cut = True

    def close(self) -> None:
        """Every connection ends, and none is taken."""
        sockets, self._open = [self._listener, *self._open], []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # a thread that waits for it wakes up
            sock.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                try:
                    far = socket.create_connection(next(self._targets))
                except ConnectionRefusedError:  # it does not listen yet, or any more
                    near.close()
                    continue
                self._open += [near, far]
                for source, target, delay in ((near, far, 0.0), (far, near, self._delay)):
                    threading.Thread(target=self._pump, args=(source, target, delay), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, delay: float) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                if self._cut:
                    return  # swallowed
                time.sleep(delay)
                target.sendall(content)
            if not self._cut:
                target.shutdown(socket.SHUT_WR)

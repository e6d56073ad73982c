#!/usr/bin/env python3
"""A small file server with one planted fault: what scripts/check-server --self-test must see red.

    faulty_server.py FAULT ROOT [--host H] [--port N] [ignored flags]

Not a server to use: it reads whole files and trusts its clients. FAULT is one of the names in FAULTS.
"""

import asyncio
import os
import signal
import socket
import sys
import urllib.parse

FAULTS = {
    "none": "serves as it should, but for the memory of Python",
    "corrupt": "one byte of every fifth file is wrong",
    "missing": "every fifth file is not found",
    "reversed": "answers to requests that arrive together are in reverse order",
    "abrupt": "SIGTERM ends it at once, amid its answers",
    "exit": "exit code 3 after SIGTERM",
    "loads": "a file is copied for each client that has not read it",
    "heavy": "a connection keeps 64 KB",
    "spins": "uses the processor when idle",
    "shares": "a second server may listen on its port",
    "unstyled": "there is no style sheet",
    "pictureless": "the image is empty",
    "errors": "every 50th answer is a 500",
    "resets": "every 50th connection is cut after a few answers",
}


class Connection(asyncio.Protocol):
    count = answers = 0
    alive = set()
    draining = False

    def connection_made(self, transport):
        Connection.count += 1
        Connection.alive.add(self)
        self.number, self.transport, self.buffer, self.served = Connection.count, transport, b"", 0
        self.ballast = bytearray(os.urandom(65536)) if FAULT == "heavy" else None

    def connection_lost(self, reason):
        Connection.alive.discard(self)

    def data_received(self, data):
        self.buffer += data
        out = []
        while b"\r\n\r\n" in self.buffer:
            head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
            out.append(self.answer(head.split(b" ")[1].decode()))
        if FAULT == "reversed":
            out.reverse()
        for answer in out:
            self.transport.write(answer)
        if FAULT == "resets" and self.number % 50 == 0 and self.served > 5:
            self.transport.abort()

    def answer(self, target):
        Connection.answers += 1
        self.served += 1
        name = urllib.parse.unquote(target.lstrip("/")) or "index.html"
        try:
            with open(os.path.join(ROOT, name), "rb") as file:
                status, body = "200 OK", file.read()
        except OSError:
            status, body = "404 Not Found", b"no"
        fifth = sum(name.encode(errors="surrogateescape")) % 5 == 0
        if FAULT == "corrupt" and fifth and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if (FAULT == "missing" and fifth) or (FAULT == "unstyled" and name.endswith(".css")):
            status, body = "404 Not Found", b"no"
        if FAULT == "pictureless" and name.endswith(".svg"):
            body = b""
        if FAULT == "errors" and Connection.answers % 50 == 0:
            status = "500 Internal Server Error"
        kind = {".html": "text/html", ".css": "text/css", ".svg": "image/svg+xml"}.get(os.path.splitext(name)[1], "text/plain")
        close = "Connection: close\r\n" if Connection.draining else ""
        return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{close}\r\n".encode() + body


async def main(port):
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    if FAULT == "abrupt":
        loop.add_signal_handler(signal.SIGTERM, lambda: os._exit(0))
    else:
        loop.add_signal_handler(signal.SIGTERM, ended.set)
    listeners = []
    for _ in range(2):  # as two shards would
        listener = socket.socket()
        if FAULT == "shares" or listeners:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            print(f"faulty_server: port {port} is taken", file=sys.stderr)
            return 2
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.listen(4096)
        listener.setblocking(False)
        port = listener.getsockname()[1]
        listeners.append(await loop.create_server(Connection, sock=listener, backlog=4096))
    print(f"faulty_server: serving {ROOT} at http://127.0.0.1:{port}/", flush=True)
    while FAULT == "spins" and not ended.is_set():
        await asyncio.sleep(0)
    await ended.wait()
    for listener in listeners:
        listener.close()
    Connection.draining = True
    while any(connection.transport.get_write_buffer_size() for connection in Connection.alive):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    return 3 if FAULT == "exit" else 0


if __name__ == "__main__":
    FAULT, ROOT = sys.argv[1:3]
    flags = dict(zip(sys.argv[3::2], sys.argv[4::2]))
    sys.exit(asyncio.run(main(int(flags.get("--port", "0")))))

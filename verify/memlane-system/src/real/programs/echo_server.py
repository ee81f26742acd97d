"""Sends back what it gets, until the client has said its last.

echo_server.py asyncio|uvloop|thread|fork|ssl PORT [CERTIFICATE KEY]
"""
import asyncio
import signal
import socketserver
import ssl
import sys

kind, port = sys.argv[1], int(sys.argv[2])


def leave(*_):
    sys.exit(0)


signal.signal(signal.SIGTERM, leave)


async def echo(reader, writer):
    while data := await reader.read(100_000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve():
    server = await asyncio.start_server(echo, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(100_000):
            self.request.sendall(data)


class Options:
    allow_reuse_address = True
    request_queue_size = 256
    daemon_threads = True


class Threads(Options, socketserver.ThreadingTCPServer):
    pass


class Forks(Options, socketserver.ForkingTCPServer):
    max_children = 100


class Tls(Options, socketserver.ThreadingTCPServer):
    context = None

    def get_request(self):
        connection, address = super().get_request()
        # The handshake is made by the thread that reads first.
        wrap = self.context.wrap_socket
        return wrap(connection, server_side=True, do_handshake_on_connect=False), address


if kind == "asyncio":
    asyncio.run(serve())
elif kind == "uvloop":
    import uvloop

    uvloop.run(serve())
else:
    if kind == "ssl":
        Tls.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        Tls.context.load_cert_chain(sys.argv[3], sys.argv[4])
    server = {"thread": Threads, "fork": Forks, "ssl": Tls}[kind](("127.0.0.1", port), Echo)
    server.serve_forever()

"""Python's http.server: web_server.py PORT DIRECTORY 1.0|1.1"""
import functools
import http.server
import signal
import sys

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = f"HTTP/{sys.argv[3]}"

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


handler = functools.partial(Handler, directory=sys.argv[2])
Server(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()

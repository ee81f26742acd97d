"""A gRPC service without generated code, and its client: messages of many sizes there and back, hashed.

grpc_hash.py server ADDRESS:PORT
grpc_hash.py client ADDRESS:PORT      prints "calls=N hash=SHA-256", of all that came back
"""

import hashlib
import random
import sys
from concurrent import futures

import grpc

LARGEST = 4 << 20
SIZES = [0, 1, 100, 5000, 70000, 1 << 20, 3000000, LARGEST]


def reverse(request, _context):
    return request[::-1]


def repeat(requests, _context):
    for request in requests:
        yield request
        yield request[::-1]


def serve(address):
    options = [("grpc.max_receive_message_length", LARGEST)]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=options)
    handlers = {
        "Reverse": grpc.unary_unary_rpc_method_handler(reverse),
        "Repeat": grpc.stream_stream_rpc_method_handler(repeat),
    }
    handler = grpc.method_handlers_generic_handler("memlane.Hash", handlers)
    server.add_generic_rpc_handlers((handler,))
    if server.add_insecure_port(address) == 0:
        sys.exit("the port is taken")
    server.start()
    server.wait_for_termination()


def call(address):
    options = [("grpc.max_receive_message_length", LARGEST), ("grpc.enable_http_proxy", 0)]
    hashed, calls = hashlib.sha256(), 0
    noise = random.Random(7)
    messages = [noise.randbytes(size) for size in SIZES * 4]
    with grpc.insecure_channel(address, options=options) as channel:
        grpc.channel_ready_future(channel).result(timeout=20)
        one = channel.unary_unary("/memlane.Hash/Reverse")
        for message in messages:
            answer = one(message, timeout=20)
            if answer != message[::-1]:
                sys.exit(f"{len(message)} bytes came back as others")
            hashed.update(answer)
            calls += 1
        many = channel.stream_stream("/memlane.Hash/Repeat")
        for answer in many(iter(messages), timeout=40):
            hashed.update(answer)
            calls += 1
    print(f"calls={calls} hash={hashed.hexdigest()}")


if sys.argv[1] == "server":
    serve(sys.argv[2])
else:
    call(sys.argv[2])

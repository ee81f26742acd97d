"""multiprocessing.connection over TCP: objects.py server|client PORT"""
import hashlib
import multiprocessing.connection
import random
import sys

role, address = sys.argv[1], ("127.0.0.1", int(sys.argv[2]))
KEY = b"not a secret"


def serve():
    with multiprocessing.connection.Listener(address, authkey=KEY) as listener:
        with listener.accept() as connection:
            while (request := connection.recv()) is not None:
                digest = hashlib.sha256(request["data"]).hexdigest()
                connection.send({"number": request["number"], "digest": digest})
                connection.send_bytes(request["data"][::-1])


def ask():
    rng = random.Random(3)
    right = 0
    with multiprocessing.connection.Client(address, authkey=KEY) as connection:
        for number in range(60):
            data = rng.randbytes(1_500_000 if number % 12 == 11 else rng.randint(0, 40_000))
            connection.send({"number": number, "data": data})
            assert connection.poll(30), "no answer"
            digest = hashlib.sha256(data).hexdigest()
            assert connection.recv() == {"number": number, "digest": digest}
            assert connection.recv_bytes() == data[::-1]
            right += 1
        connection.send(None)
    print(f"right={right}")


serve() if role == "server" else ask()

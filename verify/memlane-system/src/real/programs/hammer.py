"""Keeps asking a web server for files while the test does things to it.

hammer.py PORT SECONDS THREADS STOPFILE PATH=SHA256 [PATH=SHA256 ...]

Each thread uses one keep-alive connection and asks again, over a new one, when
a connection breaks (as browsers and proxies do). A body that is complete but
has another hash is what must never happen. A connection on which nothing happens for
30 s is a stall, and must not be either. Prints the counts.
"""
import hashlib
import http.client
import os
import sys
import threading
import time

port, seconds, threads, stop = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
files = [argument.split("=") for argument in sys.argv[5:]]
lock = threading.Lock()
totals = {"ok": 0, "broken": 0, "wrong": 0, "failed": 0, "stalled": 0}


def count(key, error=None):
    with lock:
        totals[key] += 1
        if error is not None:
            name = type(error).__name__
            totals[name] = totals.get(name, 0) + 1


def fetch(connection, path):
    connection.request("GET", "/" + path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise http.client.HTTPException(answer.status)
    return hashlib.sha256(body).hexdigest()


def hammer(number):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    end = time.monotonic() + seconds
    turn = number
    while time.monotonic() < end and not os.path.exists(stop):
        path, expected = files[turn % len(files)]
        turn += 1
        for attempt in range(20):
            try:
                right = fetch(connection, path) == expected
                count("ok" if right else "wrong")
                break
            except (OSError, http.client.HTTPException) as error:
                stalled = isinstance(error, TimeoutError)
                count("stalled" if stalled else "broken", error)
                connection.close()
                time.sleep(0.01 * attempt)
        else:
            count("failed")
    connection.close()


workers = [threading.Thread(target=hammer, args=(number,)) for number in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(*(f"{key}={value}" for key, value in totals.items()))

"""Fetches files by urllib (a connection each) and by http.client (one for all).

web_client.py PORT PATH=SHA256 [PATH=SHA256 ...]
"""
import hashlib
import http.client
import sys
import urllib.request

port = int(sys.argv[1])
files = [argument.split("=") for argument in sys.argv[2:]]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
right = 0


def check(path, answer, expected):
    global right
    digest = hashlib.sha256()
    while data := answer.read(70_000):
        digest.update(data)
    assert digest.hexdigest() == expected, f"{path} differs"
    right += 1


for path, expected in files:
    with opener.open(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
        check(path, answer, expected)
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
for path, expected in files * 3:
    connection.request("GET", "/" + path)
    check(path, connection.getresponse(), expected)
print(f"right={right}")

"""A dataset that two processes make alike, and the one that serves it: ``dataset.py HOST:PORT`` sends it over memlane.

Points around ten centres, each labelled with its centre: what one step of training does to a model is worth comparing.
"""

import sys

import numpy

CLASSES, FEATURES, BATCH, BATCHES = 10, 784, 64, 40


def batches():
    """(features, labels) of each batch: float32 (64, 784), int64 (64,)."""
    random = numpy.random.default_rng(20_240_601)
    centres = random.normal(size=(CLASSES, FEATURES)).astype(numpy.float32)
    for _ in range(BATCHES):
        labels = random.integers(0, CLASSES, size=BATCH)
        noise = random.normal(size=(BATCH, FEATURES)).astype(numpy.float32)
        yield centres[labels] + noise, labels.astype(numpy.int64)


def serve(address):
    import memlane

    with memlane.connect(address) as stream:
        for features, labels in batches():
            stream.send(features)
            stream.send(labels)
        stream.finish_sending()


if __name__ == "__main__":
    serve(sys.argv[1])

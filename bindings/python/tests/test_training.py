"""Two processes: one serves a dataset, the other trains on what it receives, where it lies.

Losses and gradients are those of the same training on a copy of this process' own, to the last bit; every tensor lies in the
region; at the end no token is out.
"""

import os
import subprocess
import sys
import unittest

import memlane
from support import LIMIT, Case, has, mapped

NUMPY = has("numpy")
TORCH = has("torch")
CUDA = False
if NUMPY:
    import numpy

    import dataset
if TORCH:
    import torch

    CUDA = torch.cuda.is_available()


class Trains(Case):
    def batches(self, region="memfd:8M"):
        """Batches as they come from the other process, as memlane's own tensors."""
        self.region = memlane.Region(region)
        with memlane.listen("127.0.0.1:0", self.region) as listener:
            server = subprocess.Popen([sys.executable, dataset.__file__, listener.address])
            self.addCleanup(server.kill)
            stream = listener.accept(timeout=LIMIT)
        self.stream = stream
        take = lambda shape, dtype: stream.receive_tensor(shape, dtype, framework="memlane", timeout=LIMIT)
        count = 0
        while True:
            try:
                features = take((dataset.BATCH, dataset.FEATURES), "float32")
            except memlane.EndOfStream:
                break
            labels = take(dataset.BATCH, "int64")
            if region.startswith("memfd:"):
                self.assertTrue(mapped(features.address) and mapped(labels.address))
            count += 1
            yield features, labels
            del features, labels
        self.assertEqual(count, dataset.BATCHES)
        self.assertEqual(server.wait(LIMIT), 0)

    def is_done(self, losses, bounced=0):
        """It has learnt something, each byte was copied as often as expected, and no token is out."""
        self.assertLess(losses[-1], losses[0] / 2)
        counts = self.stream.counts()
        received = dataset.BATCHES * dataset.BATCH * (4 * dataset.FEATURES + 8)
        self.assertEqual(counts["received"], received)
        self.assertEqual((counts["bounced"], counts["gathered"]), (bounced * received, 0))
        self.is_whole(self.stream)

    @unittest.skipUnless(NUMPY and TORCH, "SKIPPED: no NumPy or no PyTorch")
    def test_pytorch(self):
        self.is_done(self.pytorch("memfd:8M", "cpu"))

    @unittest.skipUnless(NUMPY and CUDA, "SKIPPED: no NumPy, no PyTorch, or no device of CUDA's")
    def test_pytorch_on_a_device(self):
        """The device fetches each byte once, from where the stream staged it."""
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self.is_done(self.pytorch("cuda:0:8M", "cuda:0"), bounced=1)

    def pytorch(self, region, device):
        """The losses of training on tensors where they lie, which are those of training on copies."""

        def step(model, features, labels):
            model.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            with torch.no_grad():
                for weights in model.parameters():
                    weights -= 0.01 * weights.grad
            return loss.item(), [weights.grad.clone() for weights in model.parameters()]

        def fresh():
            torch.manual_seed(7)
            layers = torch.nn.Linear(dataset.FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, dataset.CLASSES)
            return torch.nn.Sequential(*layers).to(device)

        here, there, losses = fresh(), fresh(), []
        for (own_features, own_labels), (features, labels) in zip(dataset.batches(), self.batches(region), strict=True):
            mine, same = features.torch(), labels.torch()
            self.assertEqual((mine.device, same.device), (torch.device(device), torch.device(device)))
            self.assertEqual((mine.data_ptr(), same.data_ptr()), (features.address, labels.address), "no copy")
            own_features, own_labels = (torch.from_numpy(own).to(device) for own in (own_features, own_labels))
            loss, gradients = step(here, own_features, own_labels)
            other, others = step(there, mine, same)
            self.assertEqual(loss, other)
            for one, two in zip(gradients, others, strict=True):
                self.assertTrue(torch.equal(one, two))
            losses.append(loss)
            del mine, same, features, labels
        return losses

    @unittest.skipUnless(NUMPY, "SKIPPED: no NumPy")
    def test_numpy(self):
        def step(weights, features, labels):
            scores = features @ weights
            scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
            chances = scores / scores.sum(axis=1, keepdims=True)
            rows = numpy.arange(len(labels))
            loss = -numpy.log(chances[rows, labels] + 1e-9).mean()
            chances[rows, labels] -= 1
            gradient = features.T @ chances / len(labels)
            return loss, gradient, weights - 0.05 * gradient

        here = there = numpy.zeros((dataset.FEATURES, dataset.CLASSES), dtype=numpy.float32)
        losses = []
        for (own_features, own_labels), (features, labels) in zip(dataset.batches(), self.batches(), strict=True):
            mine, same = features.numpy(), labels.numpy()
            self.assertEqual((mine.ctypes.data, same.ctypes.data), (features.address, labels.address), "no copy")
            loss, gradient, here = step(here, own_features, own_labels)
            other, another, there = step(there, mine, same)
            self.assertEqual(loss, other)
            self.assertTrue((gradient == another).all())
            losses.append(loss)
            del mine, same, features, labels
        self.is_done(losses)


if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    sys.exit(unittest.main())

"""A program that is not Celery's: it works on the workers' GPU when its turn has come, and gives it back."""

import time

from borrow import BorrowedGPU

with BorrowedGPU("node7:0").wait() as gpu:
    began = time.time()
    for _ in range(10):
        gpu.check()
        time.sleep(0.1)  # a step of work
    ended = time.time()
print(f"{gpu.gpu} was mine from {began:.3f} to {ended:.3f}")

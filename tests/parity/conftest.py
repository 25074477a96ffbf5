"""PyTorch on one thread: its pool and XLA's, on the same few cores, spin against each other."""

import importlib.util

if importlib.util.find_spec("torch"):
    import torch

    torch.set_num_threads(1)

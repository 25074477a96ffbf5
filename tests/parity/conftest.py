"""Sets PyTorch to one thread: its thread pool and XLA's would compete for the same cores."""

import importlib.util

if importlib.util.find_spec("torch"):
    import torch

    torch.set_num_threads(1)

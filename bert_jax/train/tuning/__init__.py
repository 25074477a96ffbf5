"""Ways to adapt a pretrained encoder: which parameters move, how fast, and how far."""

"""What runs on each host of a slice. Standard library only, from Python 3.10 on."""

"""Words of treebanks, their annotations and their features."""

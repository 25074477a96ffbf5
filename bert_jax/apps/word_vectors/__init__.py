"""Trains, evaluates and compares word vectors: word2vec, fastText, GloVe, ELMo and encoders."""

"""Characters to ids and back: files, cleaning, sentences, vocabularies and learning them.

Nothing here imports jax or TensorFlow; `tokenizers` and `sentencepiece` are imported with the first
vocabulary.
"""

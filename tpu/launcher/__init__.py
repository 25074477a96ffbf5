"""The laptop's side: `tpu/pod VERB` makes slices, starts training on them, and looks after it."""

"""What a run will need, before paying for it."""

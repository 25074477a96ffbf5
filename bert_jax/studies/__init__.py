"""Many runs, and what they say together: GLUE, sweeps, contests with baselines."""

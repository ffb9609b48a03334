"""Many runs of one program: results file and progress line."""

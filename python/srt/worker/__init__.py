import os

# Read by OpenMP when torch is first imported. Its threads otherwise spin between two operations,
# which on a machine with other work stalls every operation by a time slice (measured: a decode step
# of 5 ms takes 100).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

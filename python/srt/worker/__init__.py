import os

# OpenMP reads this variable when torch is first imported. By default OpenMP threads spin between
# two operations. On a machine with other work, that delays every operation by a time slice
# (measured: a decode step of 5 ms takes 100 ms).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

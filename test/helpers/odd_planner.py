"""A planner for a child process that does what the constraint's text says.

sleep S         is busy for S seconds
burn            takes processor time for ever
signal N        sends itself signal N
exit N          leaves at once
memory BYTES    takes that much
keep BYTES      keeps that much and answers
deep            recurses for ever
raise TEXT      raises ValueError(TEXT)
print           writes to standard output and reads standard input, then answers
large BYTES     answers with that much
pid             answers with its process id
tell PATH REST  appends a line to the file, then does REST
gate PATH       waits for the file, then answers
where           answers with the file its CompilePlan comes from
arguments       answers with the backend and the whitespace
error TEXT      answers with that error
anything else   is the one choice
"""

from __future__ import annotations

import os
import sys
import time

from sglang.ir.constraint import Constraint
from sglang.srt.grammar import compile_plan
from sglang.srt.grammar.compile_plan import CompilePlan

kept: list[bytearray] = []


def deep(depth: int) -> int:
    return deep(depth + 1) + 1


def make_plan(constraint: Constraint, backend: str, whitespace: str) -> CompilePlan:
    text = constraint.text
    if text.startswith("tell "):
        _, path, text = text.split(" ", 2)
        with open(path, "a") as file:
            file.write("once\n")
    word, _, rest = text.partition(" ")
    answer = text
    if word == "sleep":
        time.sleep(float(rest))
    elif word == "burn":
        while True:
            pass
    elif word == "signal":
        os.kill(os.getpid(), int(rest))
        time.sleep(60)
    elif word == "exit":
        os._exit(int(rest))
    elif word == "memory":
        bytearray(int(rest))
    elif word == "keep":
        kept.append(bytearray(os.urandom(1)) * int(rest))
    elif word == "deep":
        deep(0)
    elif word == "raise":
        raise ValueError(rest)
    elif word == "print":
        os.write(1, b"noise" * 100)
        os.write(2, b"noise" * 100)
        answer = sys.stdin.read() or "nothing"
    elif word == "large":
        return CompilePlan(path="fsm", data=bytes(int(rest)))
    elif word == "pid":
        answer = str(os.getpid())
    elif word == "gate":
        while not os.path.exists(rest.rstrip()):
            time.sleep(0.005)
    elif word == "where":
        answer = compile_plan.__file__
    elif word == "arguments":
        answer = f"{backend} {whitespace}"
    elif word == "error":
        return CompilePlan(error=rest)
    return CompilePlan(path="trie", strings=(answer,))

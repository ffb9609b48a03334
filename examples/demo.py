"""``make demo``: fork, gen, select and a batch on the embedded model, with what they cost."""

from __future__ import annotations

import random
import sys
import time

import sglang as sgl
from connect import connect
from tool_loop import ask

BIOGRAPHY = (
    "Mara Fox is 17 years old. Mara belongs to house Falcon. Mara lives in Madrid. "
    "Mara has a pet rabbit. Mara works as a sailor. Mara is brave and loyal."
)
REVIEWS = {"The food was superb.": "positive", "The screen is dull and weak.": "negative"}
FACTS = {"age": "17", "house": "Falcon", "city": "Madrid", "pet": "rabbit", "role": "sailor"}


@sgl.function
def portrait(s, text):
    s += sgl.user_begin() + text + "\n"
    forks = s.fork(len(FACTS))
    for fork, fact in zip(forks, FACTS):
        fork += f"What is the {fact}?" + sgl.user_end()
        fork += sgl.assistant(sgl.gen("answer", max_tokens=16))
    forks.join()


@sgl.function
def sentiment(s, review):
    s += f"Review: {review}\nSentiment:" + sgl.select("answer", [" positive", " negative"])


def show(question: str, answer: str, right: str) -> bool:
    print(f"  {'ok ' if answer == right else 'NO '} {question:<28} {answer}")
    return answer == right


def main() -> tuple[int, int]:
    """Right answers and all of them."""
    marks, usage, began = [], [], time.perf_counter()
    print(f"\n{BIOGRAPHY}\n\nfork + gen: five questions about it, asked in parallel")
    state = portrait.run(BIOGRAPHY, temperature=0)
    usage.append(state.usage)
    marks += [show(f, a, FACTS[f]) for f, a in zip(FACTS, state["answer"])]
    print("\nselect: the likelier of two answers")
    for review, right in REVIEWS.items():
        state = sentiment.run(review)
        usage.append(state.usage)
        marks.append(show(review, state["answer"].strip(), right))
    draw = random.Random(0)
    pairs = [(draw.randint(100, 999), draw.randint(11, 99)) for _ in range(48)]
    print(f"\nrun_batch: {len(pairs)} products at once, by calls of a calculator, of which")
    states = ask.run_batch([(f"What is {a} * {b}?",) for a, b in pairs], temperature=0)
    usage += [state.usage for state in states]
    for (a, b), state in list(zip(pairs, states))[:3]:
        show(f"What is {a} * {b}?", state.ret_value, str(a * b))
    marks += [state.ret_value == str(a * b) for (a, b), state in zip(pairs, states)]
    seconds = time.perf_counter() - began
    prompt, cached = (sum(getattr(u, n) for u in usage) for n in ("prompt_tokens", "cached_tokens"))
    written = sum(u.completion_tokens for u in usage)
    print(f"\n{sum(marks)} of {len(marks)} answers right in {seconds:.2f} s")
    print(f"{(prompt + written) / seconds:.0f} tokens/s: {prompt} read, {written} written")
    print(f"{cached} of {prompt} prompt tokens ({cached / prompt:.0%}) came from the cache")
    return sum(marks), len(marks)


if __name__ == "__main__":
    start = time.perf_counter()
    info = sgl.get_server_info(connect())
    size = f"{info['architecture']}, {info['parameters'] / 1e6:.1f} M parameters"
    ready = time.perf_counter() - start
    print(f"sglang {sgl.__version__}: {size} on {info['device']}, ready in {ready:.1f} s")
    correct, total = main()
    sys.exit(correct < 0.8 * total)

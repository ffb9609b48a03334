"""Classify many texts at once: run_batch shares the examples and fills the machine."""

from __future__ import annotations

import sglang as sgl
from connect import connect

REVIEWS = {
    "The food was superb.": "positive",
    "The screen is dull and the battery was weak.": "negative",
    "What a charming waiter!": "positive",
    "I hated the room, it was nasty.": "negative",
    "I think the music is wonderful.": "positive",
    "The plot was boring and the ending was sad.": "negative",
    "Brilliant acting, lovely sound.": "positive",
    "The soup is really awful. I want my money back.": "negative",
}


@sgl.function
def classify(s, review):
    s += "Review: The staff was terrific.\nSentiment: positive\n\n"
    s += "Review: The keyboard is broken.\nSentiment: negative\n\n"
    s += "Review: " + review + "\nSentiment:"
    s += sgl.select("label", [" positive", " negative"])
    return s["label"].strip()


def main() -> list[str]:
    states = classify.run_batch([(text,) for text in REVIEWS], temperature=0, progress_bar=True)
    for review, state in zip(REVIEWS, states):
        print(f"{state.ret_value:>9}: {review}")
    return [state.ret_value for state in states]


if __name__ == "__main__":
    connect()
    main()

"""Questions about images, as LLaVA-Bench (In-the-Wild) asks them: several about each image, each in
a conversation of its own. The image stands before the question, so its tokens are shared.

The images are generated from the seed. The model has random weights (``model``), so there is no
right answer.
"""

from __future__ import annotations

import base64
import random
from io import BytesIO

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.image_qa.model import checkpoint

QUESTIONS = 3  # about an image; LLaVA-Bench has 60 about 24
ASKED = (
    "What is shown here?",
    "Describe the scene in detail.",
    "Which colours stand out, and where are they?",
    "What could have happened just before this moment?",
    "How many separate shapes can you count?",
    "Name three things that a visitor would notice first.",
    "What mood does the picture have, and what makes it so?",
    "What would you change to make the composition calmer?",
    "Where would the main object stand if the picture were mirrored?",
)
SIZES = {False: (120, 90), True: (640, 480)}


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    found: list[Item] = []
    while len(found) < scale.items:
        picture = _picture(draw, *SIZES[scale.long])
        found += [
            {"picture": picture, "question": question, "tokens": 64 if scale.long else 8}
            for question in draw.sample(ASKED, QUESTIONS)
        ]
    return found[: scale.items]


def _picture(draw: random.Random, width: int, height: int) -> str:
    """Coloured shapes on a ground, as a ``data:`` URL."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (width, height), _colour(draw))
    pen = ImageDraw.Draw(picture)
    for shape in (pen.rectangle, pen.ellipse) * 6:
        xs = sorted(draw.randrange(width) for _ in "ab")
        ys = sorted(draw.randrange(height) for _ in "ab")
        shape((xs[0], ys[0], xs[1], ys[1]), fill=_colour(draw))
    out = BytesIO()
    picture.save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def _colour(draw: random.Random) -> tuple[int, int, int]:
    return draw.randrange(256), draw.randrange(256), draw.randrange(256)


@sgl.function
def program(s, picture, question, tokens):
    s += sgl.user(sgl.image(picture) + "\n" + question)
    s += sgl.assistant(sgl.gen("answer", tokens))
    return s["answer"]


async def plain(api: Api, item: Item) -> str:
    content = [
        {"type": "image_url", "image_url": {"url": item["picture"]}},
        {"type": "text", "text": "\n" + item["question"]},
    ]
    return await api.chat([{"role": "user", "content": content}], item["tokens"])


CLAIM = Claim(
    name="image_qa",
    title="Image questions (LLaVA)",
    paper="Table 2, LLaVA-v1.5-7B: 6.4 times as many images a second as the authors' code",
    items=items,
    program=program,
    plain=plain,
    model=checkpoint,
)

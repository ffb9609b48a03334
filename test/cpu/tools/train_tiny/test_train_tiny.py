"""The recipe of the embedded model, run from end to end at toy size."""

# ruff: noqa: E402
from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from tools.train_tiny.corpus import COPYING_LEARNT, STAGES, make_batch
from tools.train_tiny.evaluate import (
    Question,
    as_markdown,
    evaluate,
    is_free,
    is_right_list,
    questions,
)
from tools.train_tiny.export import export
from tools.train_tiny.files import load_exported
from tools.train_tiny.model import Shape, TinyLlama, complete
from tools.train_tiny.sample import IM_END, Turn, ask, write_chat, write_raw
from tools.train_tiny.tasks import GENERATORS, LONG_TASKS, MIXTURE, draw, draw_long
from tools.train_tiny.tasks.lookup import MANY_QUESTIONS, MAX_QUESTIONS
from tools.train_tiny.tokenizer import load_tokenizer
from tools.train_tiny.train import load_model, parse, progress_at, train
from tools.train_tiny.words import FIRST_NAMES, Words


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted smoke run; one thread, as tests share the machine."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run")
    train(parse(["--out", str(folder), "--smoke"]))
    return folder


def test_mixture_names_every_generator() -> None:
    assert set(MIXTURE) == set(GENERATORS)
    assert set(LONG_TASKS) <= set(GENERATORS)


def test_generators_are_deterministic() -> None:
    words = Words(held_out=False)
    for seed in range(40):
        first = draw(random.Random(seed), words, 80)
        assert first == draw(random.Random(seed), words, 80)
        assert first.parts[-1].answer


def test_held_out_words_stay_out_of_training() -> None:
    train_side, test_side = Words(held_out=False), Words(held_out=True)
    rng = random.Random(3)
    seen = {train_side.invented(rng) for _ in range(3000)}
    assert not seen & {test_side.invented(rng) for _ in range(3000)}
    assert not set(train_side.side(FIRST_NAMES)) & set(test_side.side(FIRST_NAMES))


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_every_job_has_an_answer_in_both_forms(name: str) -> None:
    for seed in range(20):
        job = GENERATORS[name](random.Random(seed), Words(seed % 2 == 0), 60)
        for sample in (write_chat(job, random.Random(0)), write_raw(job, random.Random(0))):
            prompt, answer = sample.split_last()
            assert prompt
            assert answer.strip()
            assert sample.text.startswith(prompt)


def test_arithmetic_answers_are_right() -> None:
    for seed in range(200):
        job = GENERATORS["arithmetic_direct"](random.Random(seed), Words(False), 0)
        for turn in job.turns:
            if turn.ask.startswith("What is") and any(sign in turn.ask for sign in "+-*"):
                assert eval(turn.ask[8:-1]) == int(turn.answer)


def test_sheets_are_json_of_the_asked_keys() -> None:
    for seed in range(50):
        (turn,) = GENERATORS["extract_json"](random.Random(seed), Words(False), 0).turns
        sheet = json.loads(turn.given + turn.answer)
        assert all(key in turn.ask for key in sheet)


def test_long_samples_are_long(run: Path) -> None:
    tokenizer = load_tokenizer(run / "tokenizer.json")
    sample = draw_long(random.Random(1), Words(False), 1000)
    assert len(tokenizer.encode(sample.text).ids) > 400


def test_forms() -> None:
    job = ask("t", "What is 1 + 1?", "2")
    chat = write_chat(job, random.Random(0)).text
    assert chat == (f"<|im_start|>user\nWhat is 1 + 1?{IM_END}\n<|im_start|>assistant\n2{IM_END}")
    assert write_raw(job, random.Random(0)).text.endswith(" 2\n<|endoftext|>")


def test_given_text_is_not_learnt() -> None:
    turn = Turn("q", "391", given="<tool>calc(17*23)</tool><result>391</result>")
    sample = write_chat(type(ask("t", "", ""))("t", (turn,)), random.Random(0))
    assert [part.text for part in sample.parts if part.answer] == [f"391{IM_END}"]


def test_batches_are_a_function_of_seed_and_step(run: Path) -> None:
    tokenizer = load_tokenizer(run / "tokenizer.json")
    for progress in (stage.until - 0.01 for stage in STAGES):
        first = make_batch(tokenizer, 5, 7, progress, 1024)
        again = make_batch(tokenizer, 5, 7, progress, 1024)
        other = make_batch(tokenizer, 5, 8, progress, 1024)
        assert (first.tokens == again.tokens).all()
        assert (first.weights == again.weights).all()
        assert first.tokens.shape != other.tokens.shape or (first.tokens != other.tokens).any()
        assert (first.weights > 0).any()


def test_packed_samples_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    model = TinyLlama(Shape(vocab_size=50, hidden_size=32, num_hidden_layers=2))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    tokens = torch.randint(0, 50, (1, 12))
    documents = torch.tensor([[0] * 6 + [1] * 6])
    weights = torch.zeros(1, 12)
    weights[0, 8] = 1.0
    before = model.loss(tokens, documents, weights)
    tokens[0, :6] = (tokens[0, :6] + 1) % 50
    assert torch.equal(before, model.loss(tokens, documents, weights))


def test_padding_and_cache_do_not_change_answers() -> None:
    torch.manual_seed(0)
    model = TinyLlama(Shape(vocab_size=50, hidden_size=32, num_hidden_layers=2))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    prompts = [[3, 4, 5], [9, 8, 7, 6, 5, 4], [1]]
    together = complete(model, prompts, 8, frozenset())
    assert together == [complete(model, [p], 8, frozenset())[0] for p in prompts]
    by_hand = list(prompts[0])
    for _ in range(8):
        size = len(by_hand)
        mask = torch.ones(1, 1, size, size, dtype=torch.bool).tril()
        states, _ = model.hidden(torch.tensor([by_hand]), mask)
        by_hand.append(int(model.logits(states[0, -1]).argmax()))
    assert by_hand[3:] == together[0]


def test_resumed_run_equals_uninterrupted_run(run: Path, tmp_path: Path) -> None:
    train(parse(["--out", str(tmp_path), "--smoke", "--stop-at", "5"]))
    train(parse(["--out", str(tmp_path), "--smoke"]))
    whole, state = load_model(run / "checkpoint.pt")
    resumed, _ = load_model(tmp_path / "checkpoint.pt")
    assert state["step"] == 12
    pairs = zip(whole.state_dict().items(), resumed.state_dict().items(), strict=True)
    for (name, left), (_, right) in pairs:
        assert torch.equal(left, right), name


def test_two_replicas_learn_what_one_process_learns(run: Path, tmp_path: Path) -> None:
    """Up to the order of sums; the matrices' updates are shared between the two."""
    for name, more in (("one", []), ("two", ["--replicas", "2"])):
        folder = tmp_path / name
        tokenizer = str(run / "tokenizer.json")
        train(parse(["--out", str(folder), "--smoke", "--stop-at", "3", "--tokenizer", tokenizer,
                     *more]))  # fmt: skip
    one, two = (load_model(tmp_path / name / "checkpoint.pt")[0] for name in ("one", "two"))
    for left, right in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.allclose(left, right, atol=1e-3)


def test_products_in_bfloat16_learn_nearly_the_same(run: Path, tmp_path: Path) -> None:
    tokenizer = str(run / "tokenizer.json")
    train(parse(["--out", str(tmp_path), "--smoke", "--bfloat16", "--tokenizer", tokenizer]))
    losses = [
        [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]
        for folder in (run, tmp_path)
    ]
    assert losses[0] != losses[1], "the products are in bfloat16"
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < 0.1


def test_training_asks_more_about_long_contexts() -> None:
    most = {
        held_out: max(
            len(GENERATORS["lookup_line"](random.Random(seed), Words(held_out), 600).turns)
            for seed in range(40)
        )
        for held_out in (True, False)
    }
    assert most == {True: MAX_QUESTIONS, False: MANY_QUESTIONS}


def test_export_and_evaluate(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"]
    trained, _ = load_model(run / "checkpoint.pt")
    shipped = load_exported(tmp_path)
    for left, right in zip(trained.parameters(), shipped.parameters(), strict=True):
        assert torch.allclose(left, right, atol=0.01, rtol=0.01)
    table = evaluate(tmp_path, seed=1, count=1, lengths=[])
    assert set(table) == {*GENERATORS, "mean"}
    assert "| mean |" in as_markdown(table)


def test_a_run_goes_on_from_exported_weights(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "old")
    given = ["--out", str(tmp_path / "new"), "--smoke", "--begin-with", str(tmp_path / "old")]
    settings = parse([*given, "--other-lr", "0", "--matrix-lr", "0", "--stop-at", "1"])
    assert progress_at(0, settings) == COPYING_LEARNT < progress_at(6, settings) < 1
    train(settings)
    found, _ = load_model(tmp_path / "new" / "checkpoint.pt")
    begun = load_exported(tmp_path / "old")
    assert all(map(torch.equal, found.parameters(), begun.parameters()))
    old, new = tmp_path / "old" / "tokenizer.json", tmp_path / "new" / "tokenizer.json"
    assert old.read_bytes() == new.read_bytes()


def test_lists_of_a_category_go_on_in_order() -> None:
    """A greedy answer would repeat its likeliest item otherwise."""
    after: dict[tuple[str, str], set[str]] = {}
    for seed in range(300):
        job = GENERATORS["list_category"](random.Random(seed), Words(held_out=False), 0)
        items = [line.partition(". ")[2] for line in job.turns[0].answer.split("\n")]
        category = job.turns[0].ask.split()[-1]
        for one, other in pairwise(items):
            after.setdefault((category, one), set()).add(other)
    assert all(len(found) == 1 for found in after.values())


def test_marking() -> None:
    assert questions(1, 1, [300]) == questions(1, 1, [300])
    prompt = "Question: List two fruits.\nAnswer:"
    listing = Question("list_category", "raw", prompt, " 1. fig\n2. kiwi\n<|endoftext|>")
    assert is_free(listing)
    assert is_right_list(listing, " 1. plum\n2. lime\n")
    assert not is_right_list(listing, "1. plum\n2. plum")
    assert not is_right_list(listing, "1. plum\n2. hammer")
    assert not is_free(Question("facts", "raw", "", "a"))

"""Scripts in the style of upstream's examples: its calls and module names, texts of our own. Each
takes what upstream's take from their first lines (an address or a model's path) and prints."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any

import sglang as sgl
from pydantic import BaseModel
from sglang.lang.chat_template import get_chat_template
from sglang.srt.constrained.outlines_backend import build_regex_from_object
from sglang.srt.hf_transformers_utils import get_tokenizer
from sglang.srt.server_args import ServerArgs
from sglang.utils import (
    async_stream_and_merge,
    dump_state_text,
    http_request,
    launch_server_cmd,
    print_highlight,
    stream_and_merge,
    terminate_process,
    wait_for_server,
)

# -- quick start ----------------------------------------------------------------------------------


@sgl.function
def two_questions(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=24))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=24))


FIRST: dict[str, Any] = {"question_1": "What is 17 + 25?", "question_2": "And what is 3 + 4?"}


def chat(model_path: str) -> None:
    runtime = sgl.Runtime(model_path=model_path, max_total_tokens=8192, device="cpu", threads=1)
    sgl.set_default_backend(runtime)
    state = two_questions.run(**FIRST, temperature=0)
    for message in state.messages():
        print(message["role"], ":", message["content"])
    state = two_questions.run(**FIRST, temperature=0, stream=True)
    for out in state.text_iter():
        print(out, end="", flush=True)
    print()
    for state in two_questions.run_batch([FIRST, {**FIRST, "question_1": "What is 2 + 2?"}]):
        print(state.messages()[2]["role"])
    runtime.shutdown()


@sgl.function
def few_shot(s, question):
    s += "Q: What is 1 + 1?\nA: 2\n\nQ: What is 2 + 3?\nA: 5\n\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", temperature=0)


def complete(url: str) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(url))
    state = few_shot.run(question="What is 4 + 4?")
    print("answer:", state["answer"].strip().lower())
    state = few_shot.run(question="What is 4 + 4?", stream=True)
    for out in state.text_iter("answer"):
        print(out, end="", flush=True)
    states = few_shot.run_batch(
        [{"question": "What is 4 + 4?"}, {"question": "What is 1 + 6?"}], progress_bar=True
    )
    for state in states:
        print(state["answer"])
    print("cached:", sgl.get_server_info()["stats"]["cached_tokens"] > 0)
    print("flushed:", sgl.flush_cache()["success"])


# -- usage ----------------------------------------------------------------------------------------


@sgl.function
def tool_use(s, question):
    s += "To answer this question: " + question + ". "
    s += "I need to use a " + sgl.gen("tool", choices=["calculator", "dictionary"]) + ". "
    if s["tool"] == "calculator":
        s += "The expression is" + sgl.gen("expression", max_tokens=12)
    elif s["tool"] == "dictionary":
        s += "The word is" + sgl.gen("word", max_tokens=12)


@sgl.function
def tips(s):
    s += "Two tips for a garden: 1. Water it. 2. Weed it.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Now, expand tip {i + 1} into a paragraph:\n"
        f += sgl.gen("detailed_tip", max_tokens=16, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary", max_tokens=12)


@sgl.function
def address(s):
    s += "Q: What is the address of this machine?\n"
    s += "A: " + sgl.gen(
        "answer",
        temperature=0,
        regex=r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)",
    )


def readme(url: str) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(url))
    state = tool_use.run(question="What is 5 + 5?")
    print(state["tool"], state.text().startswith("To answer"))
    print("In summary" in tips.run().text())
    print(address.run()["answer"])


def streaming(url: str) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(url))
    state = two_questions.run(**FIRST, stream=True, temperature=0)
    shown = "".join(state.text_iter(var_name="answer_2"))
    print(shown == state["answer_2"])

    async def later() -> str:
        state = two_questions.run(**FIRST, stream=True, temperature=0)
        return "".join([out async for out in state.text_async_iter(var_name="answer_2")])

    print(asyncio.run(later()) == shown)


def choices_logprob(url: str) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(url))
    questions = ["What is 5 + 6?", "What does 'vast' mean?"]
    for state in tool_use.run_batch([{"question": q} for q in questions]):
        meta_info = state.get_meta_info("tool")
        for choice in (0, 1):
            print(all(entry[0] is None or entry[0] <= 0
                      for entry in meta_info["input_token_logprobs"][choice]))  # fmt: skip


@sgl.function
def reasoning(s, question, n):
    s += "Question: Compute 1 + 2\nReasoning: I add.\nTool: calculator\nAnswer: 3\n"
    s += "Question: " + question + "\n"
    forks = s.fork(n)
    forks += "Reasoning:" + sgl.gen("reasoning", stop="\n", max_tokens=12) + "\n"
    forks += "Tool:" + sgl.gen("tool", choices=["calculator", "browser"]) + "\n"
    forks += "Answer:" + sgl.gen("answer", stop="\n", max_tokens=8) + "\n"
    forks.join()


def parallel_sample(url: str) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(url))
    state = reasoning.run(question="Compute 5 + 2 + 4.", n=5, temperature=1.0)
    for i in range(5):
        print({name: state[name][i] for name in ("reasoning", "tool", "answer")}["tool"])


class Weapon(str, Enum):
    sword = "sword"
    bow = "bow"


class Wizard(BaseModel):
    name: str
    age: int
    weapon: Weapon


SHEET = (
    r"""\{\n"""
    r"""    "name": "[\w\d\s]{1,16}",\n"""
    r"""    "Haus": "(Löwe|Dachs)",\n"""
    r"""    "length": [0-9]{1,2}\.[0-9]{1,2}\n"""
    r"""\}"""
)


@sgl.function
def sheet(s, name):
    s += name + " is a wizard. The JSON output is:\n"
    s += sgl.gen("json_output", max_tokens=256, regex=SHEET)


@sgl.function
def wizard(s):
    s += "Give me a description about a wizard in the JSON format.\n"
    s += sgl.gen("character", max_tokens=128, temperature=0, regex=build_regex_from_object(Wizard))


def json_decode(url: str) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(url))
    print(json.loads(sheet.run(name="Merlin")["json_output"])["Haus"] in ("Löwe", "Dachs"))
    print(Wizard.model_validate_json(wizard.run()["character"]).weapon.value)

    def ask(name: str) -> dict[str, Any]:
        data = {
            "text": name + " is a wizard.\n",
            "sampling_params": {"temperature": 0, "max_new_tokens": 64, "regex": SHEET},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 3,
            "return_text_in_logprobs": True,
        }
        return http_request(url + "/generate", json=data).json()["meta_info"]

    with ThreadPoolExecutor() as executor:
        for meta in executor.map(ask, ["Merlin", "Morgana"]):
            print(len(meta["input_token_logprobs"]) == meta["prompt_tokens"])
            print(len(meta["output_top_logprobs"]) == meta["completion_tokens"])


@sgl.function
def long_answer(s):
    s += sgl.user("What is 17 + 25?")
    s += sgl.assistant(sgl.gen("answer", min_tokens=20, max_tokens=24))


def min_tokens(url: str) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(url))
    print(long_answer.run().get_meta_info("answer")["completion_tokens"] >= 20)


@sgl.function
def sweep(s, context, facts):
    s += context + "\n"
    forks = s.fork(len(facts))
    for i, name in enumerate(facts):
        forks[i] += f"--- {name} ---\n{facts[name]}\n\n"
        forks[i] += sgl.gen(f"analysis_{name}", max_tokens=12, stop="\n\n", temperature=0.3)
    for i, name in enumerate(facts):
        s += f"\n[{name}] " + forks[i][f"analysis_{name}"]
    s += "\nThe pick is" + sgl.gen("pick", max_tokens=8, temperature=0.2)


def multi_stage_fork(url: str) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(url))
    http_request(f"{url}/flush_cache", json={})
    state = sweep.run(context="Boats:", facts={"Vela": "has two masts.", "Alba": "has one."})
    print("[Vela]" in state.text() and "[Alba]" in state.text())


@sgl.function
def answer_from(s, context, question):
    s += sgl.user(context + "\n" + question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=16, temperature=0))


def rag(runtime: sgl.Runtime) -> None:
    sgl.set_default_backend(runtime)
    texts = ["The red lamp is in the hall.", "What is 17 + 25? It is 42."]
    question = "What is 17 + 25?"

    def vectors(some: list[str]) -> list[list[float]]:
        return [item["embedding"] for item in json.loads(runtime.encode(some))]

    *found, wanted = vectors([*texts, question])
    scores = [sum(map(float.__mul__, vector, wanted)) for vector in found]
    best = scores.index(max(scores))
    print(answer_from.run(context=texts[best], question=question)["answer"] != "")


def templates(runtime: sgl.Runtime) -> None:
    """An example for a model whose template is set by hand."""
    kept = runtime.endpoint.chat_template
    runtime.endpoint.chat_template = get_chat_template("llama-3-instruct")
    try:
        sgl.set_default_backend(runtime)
        print("<|start_header_id|>user" in long_answer.run().text())
    finally:
        runtime.endpoint.chat_template = kept


# -- the offline engine ---------------------------------------------------------------------------

PROMPTS = ["Hello, my name is", "The lamp is", "What is 17 + 25?", "The boat has"]
PARAMS = {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 8}


def offline(model_path: str) -> None:
    llm = sgl.Engine(model_path=model_path, max_total_tokens=8192, device="cpu", threads=1)
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, PARAMS)):
        print(f"Prompt: {prompt}\nGenerated text: {output['text']}")
    tokenizer = get_tokenizer(model_path)
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    print(len(llm.generate(input_ids=ids, sampling_params=PARAMS)[0]["output_ids"]) > 0)
    greedy = {"temperature": 0, "max_new_tokens": 8}
    whole = llm.generate(PROMPTS[0], greedy)["text"]
    print(stream_and_merge(llm, PROMPTS[0], greedy) == whole)

    async def merged() -> str:
        return "".join([c async for c in async_stream_and_merge(llm, PROMPTS[0], greedy)])

    print(asyncio.run(merged()) == whole)
    llm.shutdown()


class InferenceEngine:
    def __init__(self, **kwargs: Any) -> None:
        self.engine = sgl.Engine(**kwargs)

    async def generate(self, prompt: str, sampling_params: dict[str, Any]) -> Any:
        return await self.engine.async_generate(prompt, sampling_params)


async def run_server(server_args: ServerArgs) -> None:
    inference = InferenceEngine(**dataclasses.asdict(server_args))
    tasks = [asyncio.create_task(inference.generate(p, PARAMS)) for p in PROMPTS * 8]
    for task in tasks:
        await task
        print(f"Generated text: {task.result()['text']}")
    inference.engine.shutdown()


def offline_async(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    asyncio.run(run_server(ServerArgs.from_cli_args(parser.parse_args(words))))


# -- notebooks ------------------------------------------------------------------------------------


def notebook(model_path: str) -> None:
    server_process, port = launch_server_cmd(
        f"""
python -m sglang.launch_server --model-path {model_path} \\
 --host 0.0.0.0 --device cpu --threads 1 --log-level warning
"""
    )
    try:
        wait_for_server(f"http://localhost:{port}", process=server_process)
        import openai

        client = openai.Client(base_url=f"http://127.0.0.1:{port}/v1", api_key="None")
        response = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "What is 17 + 25?"}],
            temperature=0,
            max_tokens=16,
        )
        print_highlight(f"Response: {response.choices[0].message.content}")
    finally:
        terminate_process(server_process)
    print(server_process.poll() is not None)


def dumped(url: str, path: str) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(url))
    states = few_shot.run_batch([{"question": "What is 4 + 4?"}] * 2, num_threads=2)
    dump_state_text(path, states)
    print(Path(path).read_text().count("What is 4 + 4?"))

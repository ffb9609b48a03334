"""SWARM agents: programs that share work by messages. One leads, the others wait for tasks.

The leader sends each task to the topic of one worker, and gathers their answers from its own topic.
Agents keep their text: only a new task is computed. Arguments: "leader", most tokens, number of
workers, the tasks; or "worker", most tokens, the worker's number.
"""

from __future__ import annotations

import json

from sglang.inferlet import Context, Ctx
from sglang.inferlet.samplers import at_text

ROLE = "Tasks and short answers of agent {number}.\n"
LEADER, END, ROLL_CALL = "swarm/leader", "", "who is there?"


def topic(number: int) -> str:
    return f"swarm/worker/{number}"


async def lead(ctx: Ctx, workers: int, tasks: list[str]) -> list[str]:
    """Answers to tasks, in their order; each worker has one task at a time."""
    ready: set[int] = set()
    message = ctx.subscribe(LEADER)
    for number in range(workers):  # workers that began before; later ones say hello by themselves
        ctx.broadcast(topic(number), ROLL_CALL)
    while len(ready) < workers:
        ready.add(json.loads(await message)["worker"])
        message = ctx.subscribe(LEADER)
    answers: dict[int, str] = {}
    waiting = list(enumerate(tasks))[::-1]
    idle = sorted(ready)
    while len(answers) < len(tasks):
        while idle and waiting:
            index, task = waiting.pop()
            ctx.broadcast(topic(idle.pop(0)), json.dumps({"index": index, "task": task}))
        reply = json.loads(await message)
        message = ctx.subscribe(LEADER)
        if "answer" not in reply:  # a worker's second hello
            continue
        answers[reply["index"]] = reply["answer"]
        idle.append(reply["worker"])
    for number in ready:
        ctx.broadcast(topic(number), END)
    ctx.unsubscribe(LEADER)
    return [answers[index] for index in range(len(tasks))]


async def work(ctx: Ctx, number: int, most: int) -> list[str]:
    """Prompts of the tasks that this worker has answered."""
    text = await Context(ctx).fill(ROLE.format(number=number))
    message, hello = ctx.subscribe(topic(number)), json.dumps({"worker": number})
    ctx.broadcast(LEADER, hello)
    prompts = []
    while (order := await message) != END:
        message = ctx.subscribe(topic(number))
        if order == ROLL_CALL:
            ctx.broadcast(LEADER, hello)
            continue
        task = json.loads(order)
        [own] = await text.fork()
        prompts.append(task["task"])
        await own.fill(f"Task: {task['task']}\nAnswer:")
        answer = (await own.generate_until(most, stop=at_text("\n"))).strip()
        await own.free()
        reply = {"worker": number, "index": task["index"], "answer": answer}
        ctx.broadcast(LEADER, json.dumps(reply))
    await text.free()
    return prompts


async def main(ctx: Ctx) -> list[str]:
    role, most, number, *tasks = ctx.get_arg()
    if role == "leader":
        return await lead(ctx, int(number), tasks)
    return await work(ctx, int(number), int(most))

"""Two agents of one application: an engineer writes code, another one tests it (Parrot, Fig. 7).

python examples/parrot_snake_game.py http://127.0.0.1:30000
"""

import sys

import sglang as sgl


@sgl.semantic_function(max_tokens=64, temperature=0)
def write_code(task):
    """Act as an expert software engineer.
    Write python code of {{input:task}}.
    Code: {{output:code}}"""


@sgl.semantic_function(max_tokens=64, temperature=0)
def write_test(task, code):
    """Act as an experienced QA engineer.
    Write test code for {{input:task}}.
    Code: {{input:code}}.
    Your test code: {{output:test}}"""


def write_snake_game(backend=None):
    code = write_code.submit("a snake game", backend=backend)["code"]
    test = write_test.submit("a snake game", code)["test"]
    return code.get("latency"), test.get("latency")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} URL of a runtime, such as http://127.0.0.1:30000")
    for text in write_snake_game(sgl.RuntimeEndpoint(sys.argv[1])):
        print(text)

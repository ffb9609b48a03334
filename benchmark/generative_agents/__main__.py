from benchmark.generative_agents.claim import CLAIM
from benchmark.harness.main import main

if __name__ == "__main__":
    raise SystemExit(main(CLAIM))

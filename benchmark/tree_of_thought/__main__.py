from benchmark.harness.main import main
from benchmark.tree_of_thought.claim import CLAIM

if __name__ == "__main__":
    raise SystemExit(main(CLAIM))

from benchmark.few_shot.claim import CLAIM
from benchmark.harness.main import main

if __name__ == "__main__":
    raise SystemExit(main(CLAIM))

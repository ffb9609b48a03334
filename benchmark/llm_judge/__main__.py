from benchmark.harness.main import main
from benchmark.llm_judge.claim import CLAIM

if __name__ == "__main__":
    raise SystemExit(main(CLAIM))

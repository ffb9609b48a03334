from benchmark.harness.main import main
from benchmark.line_retrieval.claim import CLAIM

if __name__ == "__main__":
    raise SystemExit(main(CLAIM))

from benchmark.harness.main import main
from benchmark.multi_chain.claim import CLAIM

if __name__ == "__main__":
    raise SystemExit(main(CLAIM))

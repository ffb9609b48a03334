from benchmark.harness.main import main
from benchmark.mt_bench.claim import CLAIM

if __name__ == "__main__":
    raise SystemExit(main(CLAIM))

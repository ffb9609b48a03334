from benchmark.harness.main import main
from benchmark.json_regex.claim import CLAIM

if __name__ == "__main__":
    raise SystemExit(main(CLAIM))

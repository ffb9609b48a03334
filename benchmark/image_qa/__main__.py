from benchmark.harness.main import main
from benchmark.image_qa.claim import CLAIM
from benchmark.image_qa.contenders import contenders

if __name__ == "__main__":
    raise SystemExit(main(CLAIM, known=contenders))

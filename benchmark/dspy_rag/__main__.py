from benchmark.dspy_rag.report import main

if __name__ == "__main__":
    raise SystemExit(main())

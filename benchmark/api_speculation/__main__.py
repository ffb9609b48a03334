from benchmark.api_speculation.report import main

if __name__ == "__main__":
    raise SystemExit(main())

"""The sandbox: programs in WebAssembly, in a child process. The only importer of wasmtime."""

"""llama.cpp through its C interface, batched as its own server does it: every pass holds one token
of each sequence that generates and then prompt tokens up to the batch size.

``spec``: ``model_path`` (GGUF), ``threads``. A beginning that all prompts share is computed once
and copied to the other sequences, which its server does not do by itself.
"""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from time import perf_counter
from typing import Any

from benchmark.peers.sides.wire import Request, serve, shared_beginning

BATCH, MICRO_BATCH = 2048, 512  # llama.cpp's defaults
SHARED = 64  # a shorter common beginning is not worth a pass of its own


class LlamaCpp:
    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        import llama_cpp as lib

        self.lib, self.threads = lib, spec["threads"]
        self.mute = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self.mute, ctypes.c_void_p(0))
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        self.model = lib.llama_model_load_from_file(spec["model_path"].encode(), params)
        if not self.model:
            raise OSError(f"llama.cpp cannot load {spec['model_path']}")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.batch = lib.llama_batch_init(BATCH, 0, 1)
        return {"versions": {"llama-cpp-python": version("llama-cpp-python")}}

    def run(self, requests: list[Request]) -> dict[str, Any]:
        self.context = self._context(requests)
        try:
            began = perf_counter()
            ids = self._generate(requests)
            return {"seconds": perf_counter() - began, "ids": ids}
        finally:
            self.lib.llama_free(self.context)

    def _context(self, requests: list[Request]) -> Any:
        """Room for every sequence, each with KV of its own (``kv_unified`` off: it is faster)."""
        longest = max(len(ids) + count for ids, count in requests)
        params = self.lib.llama_context_default_params()
        params.n_ctx = len(requests) * -(-longest // 256) * 256
        params.n_seq_max = len(requests)
        params.n_batch, params.n_ubatch = BATCH, MICRO_BATCH
        params.n_threads = params.n_threads_batch = self.threads
        params.kv_unified = False
        context = self.lib.llama_init_from_model(self.model, params)
        if not context:
            raise MemoryError(f"llama.cpp has no room for {params.n_ctx} tokens")
        return context

    def _generate(self, requests: list[Request]) -> list[list[int]]:
        drawn: list[list[int]] = [[] for _ in requests]
        done = self._share([ids for ids, _ in requests])  # prompt tokens computed, the same for all
        computed = [done] * len(requests)
        while True:
            rows: list[tuple[int, int, int, bool]] = []  # token, position, sequence, samples
            for i, (ids, count) in enumerate(requests):
                if 0 < len(drawn[i]) < count:
                    rows.append((drawn[i][-1], len(ids) + len(drawn[i]) - 1, i, True))
            for i, (ids, _) in enumerate(requests):
                start, end = computed[i], min(len(ids), computed[i] + BATCH - len(rows))
                rows += [(ids[at], at, i, at + 1 == len(ids)) for at in range(start, end)]
                computed[i] = end
            if not rows:
                return drawn
            for (_, _, i, _), token in zip((r for r in rows if r[3]), self._decode(rows)):
                drawn[i].append(token)

    def _share(self, prompts: list[list[int]]) -> int:
        """Tokens that all sequences hold afterwards."""
        common = shared_beginning(prompts)
        if common < SHARED:
            return 0
        for at in range(0, common, BATCH):
            piece = prompts[0][at : min(common, at + BATCH)]
            self._decode([(token, at + j, 0, False) for j, token in enumerate(piece)])
        memory = self.lib.llama_get_memory(self.context)
        for i in range(1, len(prompts)):
            self.lib.llama_memory_seq_cp(memory, 0, i, -1, -1)
        return common

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """One pass; the likeliest token of each row that samples."""
        import numpy

        batch = self.batch
        batch.n_tokens = len(rows)
        for j, (token, position, sequence, draws) in enumerate(rows):
            batch.token[j], batch.pos[j], batch.logits[j] = token, position, draws
            batch.n_seq_id[j], batch.seq_id[j][0] = 1, sequence
        if failed := self.lib.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {failed}")
        drawing = sum(row[3] for row in rows)
        if not drawing:
            return []
        logits = self.lib.llama_get_logits(self.context)
        table = numpy.ctypeslib.as_array(logits, (drawing, self.vocab))
        return [int(token) for token in table.argmax(1)]


if __name__ == "__main__":
    serve(LlamaCpp())

// Builds the runner: node build.mjs GUEST WIT TARGET. Random bytes are all that it imports.

import { readFile, writeFile } from "node:fs/promises";
import { argv } from "node:process";

const packageUrl = import.meta.resolve("@bytecodealliance/componentize-js");
const { componentize } = await import(packageUrl);
const { splicer } = await import(new URL("../lib/spidermonkey-embedding-splicer.js", packageUrl));
const [sourcePath, witPath, target] = argv.slice(2);
const engine = "engine.wasm";
const MIB = 1 << 20;

// The collector of the engine first runs at 27 MiB of objects or 38 MiB behind them, and lets young
// objects grow to 64 MiB. All of a program's memory is 64 MiB, so it begins earlier. These are pairs
// of 32 bits, which the engine's code has once each.
const LIMITS = [
  [[27 * MIB, 100 * MIB], [3 * MIB, 100 * MIB]],
  [[38 * MIB, MIB], [4 * MIB, MIB]],
  [[MIB / 4, 64 * MIB], [MIB / 4, MIB]],
];

/** The instruction that gives a pair, in `size` bytes or the fewest. */
function constant([low, high], size = 1) {
  let value = (BigInt(high) << 32n) | BigInt(low);
  const bytes = [0x42];
  for (;;) {
    const part = Number(value & 0x7fn);
    value >>= 7n;
    if (bytes.length + 1 >= size && value === 0n && part < 0x40) return Buffer.from([...bytes, part]);
    bytes.push(part | 0x80);
  }
}

const code = await readFile(new URL("../lib/starlingmonkey_embedding.wasm", packageUrl));
for (const [old, wanted] of LIMITS) {
  const found = constant(old);
  const at = code.indexOf(found);
  if (at < 0 || code.indexOf(found, at + 1) >= 0) {
    throw new Error(`the engine has not one pair ${old}; its collector's limits cannot be set`);
  }
  const set = constant(wanted, found.length);
  if (set.length !== found.length) throw new Error(`${wanted} takes ${set.length} bytes`);
  set.copy(code, at);
}
await writeFile(engine, code);

// Texts leave the guest by the engine's encoder alone: the usual code reads every character before.
const ENCODE = `function _utf8AllocateAndEncode(s, realloc, memory) {
  if (!s.length) return { ptr: 1, len: 0 };
  const bytes = TEXT_ENCODER_UTF8.encode(s);
  const ptr = realloc(0, 0, 1, bytes.length);
  new Uint8Array(memory.buffer, ptr, bytes.length).set(bytes);
  return { ptr, len: bytes.length };
}`;
const { spliceBindings } = splicer;
splicer.spliceBindings = (...given) => {
  const spliced = spliceBindings(...given);
  const jsBindings = spliced.jsBindings.replace(
    /function _utf8AllocateAndEncode\([^]*?\n\}/, () => ENCODE,
  );
  if (jsBindings === spliced.jsBindings) throw new Error("the bindings encode texts in another way");
  return { ...spliced, jsBindings };
};

const disableFeatures = ["stdio", "clocks", "http", "fetch-event"];
const { component } = await componentize({
  sourcePath, witPath, worldName: "program", disableFeatures, engine,
});
await writeFile(target, component);

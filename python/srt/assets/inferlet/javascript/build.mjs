// Builds the runner: node build.mjs GUEST WIT TARGET. Random bytes are all that it imports.

import { writeFile } from "node:fs/promises";
import { argv } from "node:process";
import { componentize } from "@bytecodealliance/componentize-js";

const [sourcePath, witPath, target] = argv.slice(2);
const disableFeatures = ["stdio", "clocks", "http", "fetch-event"];
const { component } = await componentize({
  sourcePath, witPath, worldName: "program", disableFeatures,
});
await writeFile(target, component);

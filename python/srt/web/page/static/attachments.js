// Images and texts that are pasted, dropped or chosen, made ready to be sent.

import { model } from "./model.js";

const MAX_FILES = 10;
const MAX_TEXT = 1_000_000; // bytes of one text
const MAX_IMAGE = 30_000_000; // bytes of one image, before it is made smaller
const MAX_SENT = 11_000_000; // characters of one message's files: a body may have 16 MiB
const MAX_SIDE = 1568; // pixels: larger images are made smaller
const PLAIN = ["image/png", "image/jpeg", "image/webp", "image/gif"];

// The files of `given` behind those that are there. Throws Error that says why one cannot be sent.
export async function withAttached(there, given) {
  if (there.length + given.length > MAX_FILES) {
    throw new Error(`${there.length + given.length} files; a message takes ${MAX_FILES} at most.`);
  }
  const files = [...there, ...(await Promise.all(given.map(read)))];
  const size = files.reduce((sum, { text = "", data = "" }) => sum + text.length + data.length, 0);
  if (size > MAX_SENT) {
    throw new Error(`The files have ${size} characters together; a message takes ${MAX_SENT} at most.`);
  }
  return files;
}

const read = (file) => (file.type.startsWith("image/") ? readImage(file) : readText(file));

async function readText(file) {
  if (file.size > MAX_TEXT) {
    throw new Error(`${file.name} has ${file.size} bytes; a text may have ${MAX_TEXT}.`);
  }
  const name = file.name || "pasted.txt";
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { kind: "text", name, type: file.type, text };
  } catch {
    // not UTF-8
  }
  throw new Error(`${name} is neither a text in UTF-8 nor an image; give one of these.`);
}

async function readImage(file) {
  const name = file.name || "pasted image";
  if (!model.vision) {
    throw new Error(`${model.name || "This model"} reads no images; ${name} was not attached.`);
  }
  if (file.size > MAX_IMAGE) throw new Error(`${name} has ${file.size} bytes; an image may have ${MAX_IMAGE}.`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${name} (${file.type}) is no image that this browser reads.`);
  }
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const data = scale === 1 && PLAIN.includes(file.type) ? await urlOf(file) : smaller(bitmap, scale);
  bitmap.close();
  const type = data.slice(5, data.indexOf(";"));
  return { kind: "image", name, type, data };
}

function urlOf(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(new Error(`${file.name} could not be read.`));
    reader.readAsDataURL(file);
  });
}

function smaller(bitmap, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // below what is transparent: JPEG has no such thing
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

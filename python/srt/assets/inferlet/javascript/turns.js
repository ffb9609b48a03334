// Turns: the calls of one program, and the promises of their answers.

/** A call was refused. `code`: "invalid", "denied", "overloaded", "lost" or another. */
export class CallError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "CallError";
    this.code = code;
  }
}

let made = [];
let count = 0;

/** Promises of answers that have not come yet, by the number of the call. */
export const open = new Map();

/** Make a call; its number. */
export function emit(call, fields) {
  count += 1;
  made.push({ call, id: count, ...fields });
  return count;
}

/** Make a call; the promise of its answer, which is rejected with CallError. */
export function ask(call, fields) {
  const id = emit(call, fields);
  return new Promise((resolve, reject) => open.set(id, { resolve, reject }));
}

/** Take answers: {"id", "value"}, or {"id", "error": {"code", "message"}}. */
export function take(answers) {
  for (const { id, value, error } of answers) {
    const promise = open.get(id);
    open.delete(id);
    if (error) promise?.reject(new CallError(error.code, error.message));
    else promise?.resolve(value ?? null);
  }
}

/** Calls that were made and not returned by a turn yet. */
export function calls() {
  const found = made;
  made = [];
  return found;
}

// ReACT agent: thoughts and calls of web APIs in turn, all in one text whose KV stays.
//
// A line "Act: word" calls the API, the line "See: ..." behind it is its answer; only that line is
// computed anew. Arguments: the URL of the API, the question, most turns, most tokens of a turn. The
// program needs the right to reach the URL.

const TASK = "Question: How many legs has a cow?\nAct: cow\nSee: A cow has four legs.\nAnswer: four\n";
const ACT = /^Act: *(.+)/;

/** The API's answer to a turn; null where the turn calls nothing. */
async function observe(ctx, url, line) {
  const found = line.match(ACT);
  if (!found) return null;
  try {
    const answer = await ctx.http_get(`${url}?q=${encodeURIComponent(found[1].trim())}`);
    return answer.split("\n")[0];
  } catch (error) {
    if (error instanceof CallError) return `error ${error.code}`;
    throw error;
  }
}

async function main(ctx) {
  const [url, question, turns, most] = ctx.get_arg();
  const text = await new Context(ctx).fill(`${TASK}Question: ${question}\nAct:`);
  const start = text.tokens.length;
  let [line, calls] = ["Act:", 0];
  for (let turn = 0; turn < Number(turns); turn++) {
    const options = { max_tokens: Number(most), stop: at_text("\n") };
    line += (await text.generate_until(options)).split("\n")[0];
    const seen = await observe(ctx, url, line);
    if (seen === null) break;
    calls += 1;
    const end = (await text.text(start)).endsWith("\n") ? "" : "\n";
    await text.fill(`${end}See: ${seen}\n`);
    line = "";
  }
  const answer = { text: await text.text(start), calls, tokens: text.tokens.length };
  await text.free();
  return answer;
}

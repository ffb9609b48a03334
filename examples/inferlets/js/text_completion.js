// Text completion by forward passes of the program's own: one token a pass, sampled by the engine.
//
// Arguments: the prompt, most tokens.

async function main(ctx) {
  const [prompt = "The weather today", count = "16"] = ctx.get_arg();
  const text = await new Context(ctx).fill(prompt);
  const answer = await text.generate_until({ max_tokens: Number(count) });
  await text.free();
  return answer;
}

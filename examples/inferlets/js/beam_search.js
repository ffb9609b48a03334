// Beam search: the most likely texts of a fixed length, or up to an end token.
//
// Beams share the pages of their common beginning. Arguments: the prompt, beams, most tokens.

/** The best `2 * width` continuations of all beams, best first. */
async function candidates(beams, width) {
  const dists = await Promise.all(beams.map((beam) => beam.text.next_dist(2 * width)));
  const found = beams.flatMap((beam, i) =>
    dists[i].top(2 * width).map(([token, logprob]) => ({ score: beam.score + logprob, beam, token })),
  );
  return found.sort((a, b) => b.score - a.score).slice(0, 2 * width);
}

/** The next beams. The first child of a beam takes its pages over, the others fork it. */
async function advance(chosen, beams) {
  const used = new Set();
  const grown = [];
  for (const { score, beam, token } of chosen) {
    const [text] = used.has(beam) ? await beam.text.fork() : [beam.text];
    used.add(beam);
    grown.push({ score, text, token });
  }
  for (const beam of beams) {
    if (!used.has(beam)) await beam.text.free();
  }
  for (const { text, token } of grown) text.extend([token]);
  return grown;
}

async function main(ctx) {
  const [prompt = "The weather today", width = "3", count = "10"] = ctx.get_arg();
  const size = Number(width);
  const root = await new Context(ctx).fill(prompt);
  const start = root.tokens.length;
  let beams = [{ score: 0, text: root }];
  const ended = [];
  for (let step = 0; step < Number(count); step++) {
    const best = await candidates(beams, size);
    for (const { score, beam, token } of best.slice(0, size)) {
      if (ctx.eos.includes(token)) {
        ended.push([score / (step + 1), [...beam.text.tokens.slice(start), token]]);
      }
    }
    const going = best.filter(({ token }) => !ctx.eos.includes(token)).slice(0, size);
    beams = await advance(going, beams);
  }
  for (const { score, text } of beams) {
    const tokens = text.tokens.slice(start);
    ended.push([score / tokens.length, tokens]);
  }
  ended.sort((a, b) => b[0] - a[0]);
  const best = ended.slice(0, size);
  return Promise.all(best.map(async ([score, tokens]) => [score, await ctx.detokenize(tokens)]));
}

//! Beam search: the most likely texts of a fixed length, or up to an end token.
//!
//! Beams share the pages of their common beginning. Arguments: the prompt, beams, most tokens. As
//! beam_search.py.

use sglang_inferlet::{all, call, facts, Context, Error};

struct Beam {
    score: f64,
    text: Context,
}

/// A beam, by its index, with one more token.
struct Candidate {
    score: f64,
    beam: usize,
    token: u32,
}

/// The best `2 * width` continuations of all beams, best first.
async fn candidates(beams: &mut [Beam], width: usize) -> Result<Vec<Candidate>, Error> {
    let mut found = Vec::new();
    let dists = all(beams.iter_mut().map(|beam| beam.text.next_dist(2 * width))).await;
    for (index, dist) in dists.into_iter().enumerate() {
        let dist = dist?;
        for (&token, &logprob) in dist.ids.iter().zip(&dist.logprobs) {
            let score = beams[index].score + f64::from(logprob);
            found.push(Candidate { score, beam: index, token });
        }
    }
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found.truncate(2 * width);
    Ok(found)
}

/// The next beams.
fn advance(chosen: Vec<&Candidate>, mut beams: Vec<Beam>) -> Vec<Beam> {
    let grow = |one: &&Candidate| {
        let mut text = beams[one.beam].text.fork();
        text.tokens.push(one.token);
        Beam { score: one.score, text }
    };
    chosen.iter().map(grow).collect()
}

async fn run() -> Result<Vec<(f64, String)>, Error> {
    let facts = facts();
    let (prompt, width, most) = match &facts.arguments[..] {
        [prompt, width, most] => (&prompt[..], width.parse()?, most.parse()?),
        _ => ("The weather today", 3, 10),
    };
    let text = Context::new(prompt).await?;
    let start = text.tokens.len();
    let (mut beams, mut ended) = (vec![Beam { score: 0.0, text }], Vec::new());
    for step in 0..most {
        let best = candidates(&mut beams, width).await?;
        for one in best.iter().take(width).filter(|one| facts.eos.contains(&one.token)) {
            let mut tokens = beams[one.beam].text.tokens[start..].to_vec();
            tokens.push(one.token);
            ended.push((one.score / f64::from(step + 1), tokens));
        }
        let going = best.iter().filter(|one| !facts.eos.contains(&one.token));
        beams = advance(going.take(width).collect(), beams);
    }
    for beam in &beams {
        let tokens = beam.text.tokens[start..].to_vec();
        ended.push((beam.score / tokens.len() as f64, tokens));
    }
    ended.sort_by(|a, b| b.0.total_cmp(&a.0));
    ended.truncate(width);
    let asked: Vec<_> = ended
        .into_iter()
        .map(|(score, tokens)| (score, call("detokenize").put("tokens", &tokens).ask()))
        .collect();
    let mut shown = Vec::new();
    for (score, text) in asked {
        shown.push((score, text.await?));
    }
    Ok(shown)
}

sglang_inferlet::inferlet!(run);

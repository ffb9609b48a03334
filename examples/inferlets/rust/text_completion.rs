//! Text completion by forward passes of the program's own: one token a pass, sampled by the engine.
//!
//! Arguments: the prompt, most tokens. As text_completion.py.

use sglang_inferlet::{facts, object, Context, Error};

async fn run() -> Result<String, Error> {
    let facts = facts();
    let (prompt, most) = match &facts.arguments[..] {
        [prompt, most] => (&prompt[..], most.parse()?),
        _ => ("The weather today", 16),
    };
    let mut text = Context::new(prompt).await?;
    let (start, greedy) = (text.tokens.len(), object(&[("temperature", &0)]));
    while text.tokens.len() < start + most {
        let token = text.sample(&greedy).await?;
        if facts.eos.contains(&token) {
            break;
        }
        text.tokens.push(token);
    }
    text.text(start).await
}

sglang_inferlet::inferlet!(run);

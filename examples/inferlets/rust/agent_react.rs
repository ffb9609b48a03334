//! ReACT agent: thoughts and calls of web APIs in turn, all in one text whose KV stays.
//!
//! A line "Act: word" calls the API, the line "See: ..." behind it is its answer; only that line is
//! computed anew. Arguments: the URL of the API, the question, most turns, most tokens of a turn. The
//! program needs the right to reach the URL. As agent_react.py.

use sglang_inferlet::{call, error, facts, object, Context, Error, Raw};

const TASK: &str = "Question: How many legs has a cow?\nAct: cow\nSee: A cow has four legs.\nAnswer: four\n";

fn first_line(text: &str) -> &str {
    text.split('\n').next().unwrap_or("")
}

fn quoted(text: &str) -> String {
    let mut url = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~/".contains(&byte) {
            url.push(byte.into());
        } else {
            url += &format!("%{:02X}", byte);
        }
    }
    url
}

/// The API's answer to a turn; none where the turn calls nothing.
async fn observe(url: &str, line: &str) -> Result<Option<String>, Error> {
    let query = match line.strip_prefix("Act:") {
        Some(query) if !query.is_empty() => quoted(query.trim()),
        _ => return Ok(None),
    };
    let url = format!("{}?q={}", url, query);
    match call("http_get").put("url", &url).ask::<String>().await {
        Ok(answer) => Ok(Some(first_line(&answer).into())),
        Err(refusal) => Ok(Some(format!("error {}", refusal.code))),
    }
}

/// Append tokens up to an end of a line, or the end; their text.
async fn next_line(text: &mut Context, most: usize) -> Result<String, Error> {
    let (start, greedy) = (text.tokens.len(), object(&[("temperature", &0)]));
    while text.tokens.len() < start + most {
        let token = text.sample(&greedy).await?;
        if facts().eos.contains(&token) {
            break;
        }
        text.tokens.push(token);
        if text.text(start).await?.contains('\n') {
            break;
        }
    }
    text.text(start).await
}

async fn run() -> Result<Raw, Error> {
    let facts = facts();
    let (url, question, turns, most) = match &facts.arguments[..] {
        [url, question, turns, most] => (url, question, turns.parse::<u32>()?, most.parse()?),
        _ => return Err(error("usage", "4 arguments: URL, question, turns, tokens")),
    };
    let mut text = Context::new(&format!("{}Question: {}\nAct:", TASK, question)).await?;
    let (start, mut before, mut calls) = (text.tokens.len(), "Act:", 0);
    for _ in 0..turns {
        let line = format!("{}{}", before, first_line(&next_line(&mut text, most).await?));
        let seen = match observe(url, &line).await? {
            Some(seen) => seen,
            None => break,
        };
        calls += 1;
        let end = if text.text(start).await?.ends_with('\n') { "" } else { "\n" };
        text.append(&format!("{}See: {}\n", end, seen)).await?;
        before = "";
    }
    let shown = text.text(start).await?;
    Ok(object(&[("text", &shown), ("calls", &calls), ("tokens", &text.tokens.len())]))
}

sglang_inferlet::inferlet!(run);

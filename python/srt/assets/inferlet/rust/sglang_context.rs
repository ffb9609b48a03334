//! Texts whose KV a program holds, page by page.

use std::rc::Rc;

use super::{call, facts, with, Answer, Bytes, Call, Error, Json, Raw, Read};

const QUEUES: u32 = 64; // texts of different queues are computed in one pass
const KINDS: [[&str; 3]; 2] = [["pages", "alloc_kvpage", "dealloc_kvpage"], ["embs", "alloc_emb", "dealloc_emb"]];

/// The queue of a new text.
fn next_queue() -> u32 {
    let texts = with(|run| { run.texts += 1; run.texts });
    let queue = texts % QUEUES;
    if texts <= QUEUES { call("create_queue").put("queue", &queue).make(); }
    queue
}

/// A page (of kind 0) or an embedding (1), which is freed once no text uses it.
struct Handle { number: u32, kind: usize, queue: u32 }

impl Handle {
    fn take(kind: usize, count: usize, queue: u32) -> Vec<Rc<Handle>> {
        let first = with(|run| { run.handles += count as u32; run.handles - count as u32 });
        let numbers: Vec<u32> = (first..first + count as u32).collect();
        if count > 0 { call(KINDS[kind][1]).put("queue", &queue).put(KINDS[kind][0], &numbers).make(); }
        numbers.into_iter().map(|number| Rc::new(Handle { number, kind, queue })).collect()
    }
}

impl Drop for Handle {
    fn drop(&mut self) { with(|run| run.unused.push((self.queue, self.kind, self.number))) }
}

/// Free pages and embeddings that no text uses any more.
pub fn free_unused() {
    let mut unused = with(|run| std::mem::take(&mut run.unused));
    unused.sort_unstable();
    while let Some(&(queue, kind, _)) = unused.last() {
        let first = unused.iter().position(|one| (one.0, one.1) == (queue, kind)).unwrap_or(0);
        let numbers: Vec<u32> = unused.drain(first..).map(|one| one.2).collect();
        call(KINDS[kind][2]).put("queue", &queue).put(KINDS[kind][0], &numbers).make();
    }
}

fn numbers(handles: &[Rc<Handle>]) -> Vec<u32> { handles.iter().map(|one| one.number).collect() }

/// The most likely next tokens, most likely first, and the logarithms of their probabilities.
pub struct Dist { pub ids: Vec<u32>, pub logprobs: Vec<f32> }

impl Read for Dist {
    fn read(json: Json) -> Result<Dist, Error> {
        let (ids, logprobs): (Bytes, Bytes) = (json.field("ids")?, json.field("logprobs")?);
        let word = |four: &[u8]| u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        Ok(Dist {
            ids: ids.0.chunks_exact(4).map(word).collect(),
            logprobs: logprobs.0.chunks_exact(4).map(|four| f32::from_bits(word(four))).collect(),
        })
    }
}

/// A text with pages of its own, some of which forks of it share. The KV of its tokens is computed
/// where what follows them is wanted.
#[derive(Default)]
pub struct Context {
    pub tokens: Vec<u32>,
    queue: u32, computed: usize, room: usize, pages: Vec<Rc<Handle>>, embs: Vec<Rc<Handle>>,
}

impl Context {
    /// A text that begins as a prompt does.
    pub async fn new(prompt: &str) -> Result<Context, Error> {
        let tokens = call("tokenize").put("text", prompt).put("special", &true).ask().await?;
        Ok(Context { tokens, queue: next_queue(), ..Context::default() })
    }

    pub async fn append(&mut self, text: &str) -> Result<(), Error> {
        self.tokens.extend(call("tokenize").put("text", text).ask::<Vec<u32>>().await?);
        Ok(())
    }

    /// The text of the tokens from `start` on.
    pub fn text(&self, start: usize) -> Answer<String> {
        call("detokenize").put("tokens", &self.tokens[start..]).ask()
    }

    /// A text that begins with this one. Neither writes to a page of the other.
    pub fn fork(&mut self) -> Context {
        self.room = 0;
        let (tokens, pages) = (self.tokens.clone(), self.pages.clone());
        Context { tokens, pages, queue: next_queue(), computed: self.computed, ..Context::default() }
    }

    /// The `k` most likely tokens behind the text, which must have a token that is not computed.
    pub fn next_dist(&mut self, k: usize) -> Answer<Dist> {
        let (forward, emb) = self.forward("forward");
        forward.put("oemb", &[emb][..]).make();
        call("get_next_dist").put("queue", &self.queue).put("emb", &emb).put("k", &k).ask()
    }

    /// A token behind the text that the engine samples by `params`, as of `/generate`. It is not appended.
    pub fn sample(&mut self, params: &Raw) -> Answer<u32> {
        self.forward("forward_with_sampling").0.put("params", params).ask()
    }

    fn forward(&mut self, name: &str) -> (Call, u32) {
        let (new, seen, size) = (self.tokens.len() - self.computed, self.pages.len(), facts().page_size);
        assert!(new > 0, "all tokens of the text are computed; append one first");
        let first = seen - (self.room > 0) as usize;
        let missing = (new.saturating_sub(self.room) + size - 1) / size;
        self.room = self.room + missing * size - new;
        self.pages.extend(Handle::take(0, missing, self.queue));
        self.embs.extend(Handle::take(1, new.saturating_sub(self.embs.len()), self.queue));
        let (pages, embs) = (numbers(&self.pages), numbers(&self.embs[..new]));
        let positions: Vec<usize> = (self.computed..self.tokens.len()).collect();
        call("embed_txt").put("queue", &self.queue).put("embs", &embs).put("positions", &positions)
            .put("tokens", &self.tokens[self.computed..]).make();
        self.computed = self.tokens.len();
        let forward = call(name).put("queue", &self.queue).put("iemb", &embs);
        (forward.put("ikv", &pages[..seen]).put("okv", &pages[first..]), embs[new - 1])
    }
}

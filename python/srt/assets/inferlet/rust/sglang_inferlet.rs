//! Inferlets in Rust: a core module that exports `alloc` and `turn` (docs/inferlet-sandbox.md).
//!
//! A program is an `async fn`. A call returns a future of its answer; where all futures of the
//! program wait, the turn ends, and its calls leave together:
//!
//!     use sglang_inferlet::{call, Error, Raw};
//!
//!     async fn run() -> Result<String, Error> {
//!         let answer: Raw = call("generate").put("text", "Hello").ask().await?;
//!         answer.json().field("text")
//!     }
//!     sglang_inferlet::inferlet!(run);
//!
//! The value of `run` is the result. An error that leaves it ends the program, and so does a panic;
//! both name the line. Build with `sglang inferlet build FILE.rs`. Rust 1.63 or later, no crates.

use std::cell::RefCell;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Polling, Poll, Wake};

mod sglang_context;
mod sglang_json;
pub use sglang_context::{Context, Dist};
pub use sglang_json::{object, Bytes, Items, Json, Raw, Read, Write};

/// Why a call was refused, or what else has failed. `place`: of the call, or of the `?`.
pub struct Error { pub code: String, pub message: String, pub place: &'static Location<'static> }

#[track_caller]
pub fn error(code: &str, message: &str) -> Error {
    Error { code: code.into(), message: message.into(), place: Location::caller() }
}

impl<E: std::error::Error> From<E> for Error {
    #[track_caller]
    fn from(cause: E) -> Error { error("error", &cause.to_string()) }
}

// -- calls -----------------------------------------------------------------------------------------

/// What a program knows from its start; `json` has all of it.
#[derive(Default)]
pub struct Facts { pub json: String, pub arguments: Vec<String>, pub eos: Vec<u32>, pub page_size: usize }

pub fn facts() -> Rc<Facts> { with(|run| run.facts.clone()) }

/// A call, to which fields are put before it is made.
#[must_use]
pub struct Call(String);

/// The answer to a call that was made.
pub struct Answer<T>(u64, &'static Location<'static>, PhantomData<T>);

pub fn call(name: &str) -> Call { Call(String::new()).put("call", name) }

impl Call {
    pub fn put(mut self, name: &str, value: &(impl Write + ?Sized)) -> Call {
        self.0.push(',');
        name.write(&mut self.0);
        self.0.push(':');
        value.write(&mut self.0);
        self
    }

    /// Make the call, whose number this is.
    pub fn make(self) -> u64 {
        with(|run| {
            run.count += 1;
            run.calls.push_str(if run.calls.is_empty() { "[{\"id\":" } else { ",{\"id\":" });
            run.count.write(&mut run.calls);
            run.calls.push_str(&self.0);
            run.calls.push('}');
            run.count
        })
    }

    /// Make the call, and give its answer where that is awaited.
    #[track_caller]
    pub fn ask<T: Read>(self) -> Answer<T> { Answer(self.make(), Location::caller(), PhantomData) }
}

impl<T> Unpin for Answer<T> {}
impl<T: Read> Future for Answer<T> {
    type Output = Result<T, Error>;
    fn poll(self: Pin<&mut Self>, _: &mut Polling) -> Poll<Self::Output> {
        let found = with(|run| {
            let at = run.answers.iter().position(|one| one.0 == self.0)?;
            Some(run.answers.swap_remove(at).1)
        });
        match found {
            None => Poll::Pending,
            Some(Ok(value)) => Poll::Ready(T::read(Json(&value))),
            Some(Err((code, message))) => Poll::Ready(Err(Error { code, message, place: self.1 })),
        }
    }
}

/// Futures that go on at the same time; their values in order.
pub struct All<F: Future>(Vec<(Pin<Box<F>>, Option<F::Output>)>);

pub fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> All<F> {
    All(futures.into_iter().map(|one| (Box::pin(one), None)).collect())
}

impl<F: Future> Unpin for All<F> {}
impl<F: Future> Future for All<F> {
    type Output = Vec<F::Output>;
    fn poll(mut self: Pin<&mut Self>, polling: &mut Polling) -> Poll<Self::Output> {
        for (future, value) in self.0.iter_mut().filter(|one| one.1.is_none()) {
            if let Poll::Ready(found) = future.as_mut().poll(polling) { *value = Some(found) }
        }
        if self.0.iter().any(|one| one.1.is_none()) { return Poll::Pending }
        Poll::Ready(self.0.drain(..).filter_map(|one| one.1).collect())
    }
}

// -- turns -----------------------------------------------------------------------------------------

type Main = Pin<Box<dyn Future<Output = Result<String, Error>>>>;

#[derive(Default)]
struct Run {
    input: Vec<u8>, calls: String, count: u64, facts: Rc<Facts>, main: Option<Main>,
    answers: Vec<(u64, Result<String, (String, String)>)>, handles: u32, texts: u32, unused: Vec<(u32, usize, u32)>,
}

thread_local! {
    static RUN: RefCell<Run> = RefCell::default();
    static FAILURE: RefCell<String> = RefCell::default();
}

fn with<T>(work: impl FnOnce(&mut Run) -> T) -> T { RUN.with(|run| work(&mut run.borrow_mut())) }

struct Idle; // every turn polls the whole program
impl Wake for Idle { fn wake(self: Arc<Self>) {} }

/// Export the functions that the server calls, for an `async fn` without parameters.
#[macro_export]
macro_rules! inferlet { ($main:path) => {
    #[no_mangle] pub extern "C" fn alloc(size: u32) -> u32 { sglang_inferlet::alloc(size) }
    #[no_mangle] pub extern "C" fn failure() -> u64 { sglang_inferlet::failure() }
    #[no_mangle] pub extern "C" fn turn(_: u32, size: u32) -> u64 {
        sglang_inferlet::turn(size, || Box::pin(async {
            let mut text = String::new();
            sglang_inferlet::Write::write(&$main().await?, &mut text);
            Ok(text)
        }))
    }
} }

fn packed(text: &str) -> u64 { (text.as_ptr() as u64) << 32 | text.len() as u64 }

pub fn alloc(size: u32) -> u32 {
    with(|run| { run.input = vec![0; size as usize]; run.input.as_ptr() as u32 })
}

/// The text of the panic that has ended a turn.
pub fn failure() -> u64 { FAILURE.with(|text| packed(&text.borrow())) }

pub fn turn(size: u32, begin: fn() -> Main) -> u64 {
    let input = with(|run| { run.calls.clear(); std::mem::take(&mut run.input) });
    let end = advance(&input[..size as usize], begin);
    sglang_context::free_unused();
    match end {
        Ok(None) => {}
        Ok(Some(value)) => { call("set_return").put("value", &Raw(value)).make(); call("exit").make(); }
        Err(error) => {
            let text = format!("{}: {} ({})", error.code, error.message, error.place);
            call("exit").put("error", &text).make();
        }
    }
    with(|run| { run.calls.push_str(if run.calls.is_empty() { "[]" } else { "]" }); packed(&run.calls) })
}

/// Begin the program, or go on with answers; its result where it has one.
fn advance(input: &[u8], begin: fn() -> Main) -> Result<Option<String>, Error> {
    let input = Json(std::str::from_utf8(input)?);
    let main = with(|run| run.main.take());
    for answer in input.items().filter(|_| main.is_some()) {
        let (id, refusal) = (answer.field("id")?, answer.get("error"));
        let value = match refusal {
            Some(refusal) => Err((refusal.field("code")?, refusal.field("message")?)),
            None => Ok(answer.get("value").map_or("null", |value| value.0).into()),
        };
        with(|run| run.answers.push((id, value)));
    }
    if main.is_none() {
        std::panic::set_hook(Box::new(|info| FAILURE.with(|text| *text.borrow_mut() = info.to_string())));
        let (arguments, eos, page_size) = (input.field("arguments")?, input.field("eos")?, input.field("page_size")?);
        with(|run| run.facts = Rc::new(Facts { json: input.0.into(), arguments, eos, page_size }));
    }
    let mut main = main.unwrap_or_else(begin);
    match main.as_mut().poll(&mut Polling::from_waker(&Arc::new(Idle).into())) {
        Poll::Ready(value) => value.map(Some),
        Poll::Pending => { with(|run| run.main = Some(main)); Ok(None) }
    }
}

//! What the generated functions are made of. `build.rs` generates them.

pub mod runtime;

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

thread_local! {
    static DROPPED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Tells when it is dropped.
#[derive(Debug)]
pub struct Loud {
    name: &'static str,
    /// Something to read.
    pub n: u64,
}

impl Drop for Loud {
    fn drop(&mut self) {
        DROPPED.with_borrow_mut(|dropped| dropped.push(self.name));
    }
}

/// A new one.
pub fn loud(name: &'static str) -> Loud {
    Loud { name, n: 1 }
}

/// One that the body makes.
pub fn some() -> Option<Loud> {
    Some(loud("local"))
}

/// None of them.
pub fn none() -> Option<Loud> {
    None
}

/// A small number, which the compiler does not know.
pub fn num() -> Option<u64> {
    std::hint::black_box(Some(1))
}

/// Reads it.
pub fn read(loud: &Loud) -> u64 {
    std::hint::black_box(loud.n)
}

/// Takes anything.
pub fn take<T>(value: T) {
    drop(std::hint::black_box(value));
}

/// A type with fields that are called as the arguments.
#[derive(Debug, Default)]
pub struct Abc {
    /// As the argument.
    pub a: u64,
    /// As the argument.
    pub b: u64,
    /// As the argument.
    pub c: u64,
}

impl Abc {
    /// As the argument.
    pub fn a(&self) -> u64 {
        self.a
    }
    /// As the argument.
    pub fn b(&self) -> u64 {
        self.b
    }
    /// As the argument.
    pub fn c(&self) -> u64 {
        self.c
    }
}

/// Three of them, to be taken apart.
#[derive(Debug)]
pub struct Trio {
    /// As the argument.
    pub a: Loud,
    /// As the argument.
    pub b: Loud,
    /// As the argument.
    pub c: Loud,
}

/// `name = value`, as in macros that log.
#[macro_export]
macro_rules! field {
    ($name:ident = $value:expr) => {
        $crate::take($value)
    };
}

/// `name = value => block`, as in macros that select.
#[macro_export]
macro_rules! select {
    ($name:ident = $value:expr => $block:block) => {{
        let $name = $value;
        $block
    }};
}

/// Pending once.
pub async fn pause() {
    let mut polled = false;
    poll_fn(|_| match std::mem::replace(&mut polled, true) {
        false => Poll::Pending,
        true => Poll::Ready(()),
    })
    .await;
}

/// The future of a generated function.
pub type Call = Pin<Box<dyn Future<Output = Result<(), runtime::__private::LockError>>>>;

/// What is dropped, in order, when the call is polled at most so often.
///
/// # Panics
/// When the call fails.
pub fn dropped(call: fn() -> Call, polls: usize) -> Vec<&'static str> {
    let mut future = call();
    for _ in 0..polls {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            result.expect("no body fails");
            break;
        }
    }
    drop(future);
    DROPPED.take()
}

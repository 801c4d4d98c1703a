//! The attributes of dblock. Use them through that crate, which re-exports them.
//!
//! An attribute is read (`pairs`, `args`, `once`, `values`). Its function is split (`function`,
//! `desugared`) and checked (`check`). The key template is resolved against the function's arguments
//! (`template`, `format`, `constant`), and the parts are put together (`expand`, `layer`, `lock`, `options`, `retry`,
//! `output`, `capture`). Mistakes are collected (`errors`) and reported all at once, and the
//! function then stays as it was. The generated code calls `dblock::__private` and nothing else.

#![allow(
    clippy::large_enum_variant,
    reason = "in the tests' builds tokens know where they are"
)]

mod args;
mod capture;
mod check;
mod constant;
mod desugared;
mod errors;
mod expand;
mod format;
mod function;
mod kind;
mod layer;
mod lock;
mod once;
mod options;
mod output;
mod pairs;
mod retry;
mod template;
#[cfg(test)]
mod tests;
mod values;

use dblock_core::{duration, limits, suggest};
use kind::Kind;
use proc_macro::TokenStream;

// The examples of these pages are run in `dblock-tests`, which has `dblock`: `support/attributes.rs`.
#[cfg_attr(not(doctest), doc = include_str!("docs/distributed_lock.md"))]
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::attribute(Kind::Lock, args.into(), item.into()).into()
}

#[cfg_attr(not(doctest), doc = include_str!("docs/optimistic_retry.md"))]
#[proc_macro_attribute]
pub fn optimistic_retry(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::attribute(Kind::Retry, args.into(), item.into()).into()
}

#[cfg_attr(not(doctest), doc = include_str!("docs/run_once.md"))]
#[proc_macro_attribute]
pub fn run_once(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::attribute(Kind::Once, args.into(), item.into()).into()
}

//! The `#[distributed_lock]` attribute of dblock.

mod args;
mod capture;
mod desugared;
mod duration;
mod errors;
mod expand;
mod function;
mod suggest;
mod template;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Runs an async function under a distributed lock.
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::attribute(args.into(), item.into()).into()
}

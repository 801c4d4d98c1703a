//! Mistakes in a function that can be found before the compiler looks at it.

use proc_macro2::{TokenStream, TokenTree};
use syn::ReturnType;

use crate::args::Args;
use crate::errors::Errors;
use crate::function::Function;

/// The function must be async.
pub(crate) fn signature(function: &Function, errors: &mut Errors) {
    let sig = &function.sig;
    if let Some(constness) = &sig.constness {
        errors.push(syn::Error::new(
            constness.span,
            "a `const fn` runs while compiling, where there is no lock; remove the `const`",
        ));
    }
    if let Some(abi) = &sig.abi {
        errors.push(syn::Error::new_spanned(
            abi,
            "an `extern` function cannot wait for a lock; remove the `extern`",
        ));
    }
    if sig.asyncness.is_none() && sig.constness.is_none() && sig.abi.is_none() {
        // Such as #[tokio::main], which leaves `block_on` behind.
        let message = if contains(function.body.stream(), "block_on") {
            "another attribute has made this function synchronous already; put `#[distributed_lock]` above it"
                .into()
        } else {
            format!(
                "taking a lock needs an async function: write `async fn {}`",
                sig.ident
            )
        };
        errors.push(syn::Error::new(sig.fn_token.span, message));
    }
}

/// Without a return type, nothing can carry a failure. Whether a given type can is left to the compiler.
pub(crate) fn return_type(function: &Function, locks: &[Args], errors: &mut Errors) {
    if matches!(function.sig.output, ReturnType::Default) && locks.iter().any(|lock| lock.on_error.is_none())
    {
        errors.push(syn::Error::new(
            function.sig.ident.span(),
            "this function returns nothing, so it cannot say that the lock failed; return `Result<(), E>` \
             where `E: From<dblock::LockError>`, or say what to do with `on_error = |error| …`",
        ));
    }
}

/// Whether a word is among the tokens, at any depth.
pub(crate) fn contains(tokens: TokenStream, word: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == word,
        TokenTree::Group(group) => contains(group.stream(), word),
        _ => false,
    })
}

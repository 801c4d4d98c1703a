//! Mistakes in a function that can be found before the compiler looks at it.

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt as _;
use syn::{FnArg, Ident, Pat, PatType, Type};

use crate::desugared::future_output;
use crate::errors::Errors;
use crate::function::{Function, Scope};
use crate::kind::Kind;
use crate::retry::is_transaction;

/// The function must be async, unless a lock is all that it is to have.
pub(crate) fn signature(function: &Function, kind: Kind, errors: &mut Errors) {
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
            "an `extern` function cannot run under a lock; remove the `extern`",
        ));
    }
    let may_block = kind == Kind::Lock && function.is_blocking;
    if sig.asyncness.is_none() && sig.constness.is_none() && sig.abi.is_none() && !may_block {
        let name = kind.name();
        let message = if blocks_itself(function.body.stream()) {
            format!(
                "{} needs an async function: move the code that `block_on` runs into an `async fn` with this attribute, and \
                 give `block_on` a call of that",
                kind.doing()
            )
        } else if was_made_to_block(function.body.stream()) {
            format!("another attribute has made this function synchronous already; put `#[{name}]` above it")
        } else if future_output(&sig.output).is_some() {
            format!(
                "`#[{name}]` goes around an async block: end this function with `Box::pin(async move {{ … }})` or \
                 `async move {{ … }}`, or write `async fn {}`",
                sig.ident
            )
        } else {
            format!(
                "{} needs an async function: write `async fn {}`",
                kind.doing(),
                sig.ident
            )
        };
        errors.push(syn::Error::new(sig.fn_token.span, message));
    }
}

/// By an attribute such as `#[tokio::main]`, which leaves `block_on` behind.
pub(crate) fn was_made_to_block(body: TokenStream) -> bool {
    contains(body.clone(), "block_on") && !blocks_itself(body)
}

/// Whether a person wrote a `block_on`. That of another attribute has its place, but other text.
pub(crate) fn blocks_itself(body: TokenStream) -> bool {
    body.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => {
            ident == "block_on" && ident.span().source_text().as_deref() == Some("block_on")
        }
        TokenTree::Group(group) => blocks_itself(group.stream()),
        _ => false,
    })
}

/// A function without a return type cannot return a failure. Whether a given type can is left to the
/// compiler.
pub(crate) const LOCK_NEEDS_RESULT: &str = "this function returns nothing, so it cannot say that the lock failed; return \
    `Result<(), E>` where `E: From<dblock::LockError>`, or say what to do with `on_error = |error| …`";

/// The type `!` has no value for a failure, and stable Rust takes it nowhere else.
pub(crate) fn returns(output: &Type, errors: &mut Errors) {
    if matches!(ungrouped(output), Type::Never(_)) {
        errors.push(syn::Error::new_spanned(
            output,
            "this function never returns, so it cannot say that it did not begin; return `Result<std::convert::Infallible, E>`",
        ));
    }
}

/// The argument that is the transaction must be there, and borrowed: the caller commits.
pub(crate) fn transaction(tx: &Ident, function: &Function, scope: &Scope, errors: &mut Errors) {
    let name = tx.unraw().to_string();
    if function.is_blocking {
        errors.push(syn::Error::new(
            tx.span(),
            format!(
                "a lock that ends with a transaction needs an async function: write `async fn {}`",
                function.sig.ident
            ),
        ));
        return;
    }
    if name == "self" {
        errors.push(syn::Error::new(
            tx.span(),
            "`tx` takes an argument that is the transaction, and not `self`: give the function a `tx: &mut Transaction<'_, _>` \
             and write `tx = tx`",
        ));
        return;
    }
    let Some(found) = scope.find(&name) else {
        errors.push(syn::Error::new(tx.span(), scope.unknown(&name)));
        return;
    };
    let ty = function.sig.inputs.iter().find_map(|input| match input {
        FnArg::Typed(PatType { pat, ty, .. }) => match &**pat {
            Pat::Ident(name) if name.ident == *found => Some(ungrouped(ty)),
            _ => None,
        },
        FnArg::Receiver(_) => None,
    });
    // Other types, and arguments that another attribute has changed, are left to the compiler.
    let Some(ty) = ty.filter(|ty| is_transaction(ty)) else {
        return;
    };
    let message = match ty {
        Type::Reference(reference) if reference.mutability.is_some() => return,
        Type::Reference(_) => "statements of the lock run in this transaction: write `&mut` instead of `&`",
        _ => {
            "the caller begins and commits the transaction, so the function borrows it: write `&mut` before the type"
        }
    };
    errors.push(syn::Error::new_spanned(ty, message));
}

/// Without the invisible group of a fragment, and without parentheses.
pub(crate) fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Paren(ty) => ungrouped(&ty.elem),
        Type::Group(ty) => ungrouped(&ty.elem),
        ty => ty,
    }
}

/// Whether an attribute of ours has made this body.
pub(crate) fn is_expanded(body: TokenStream) -> bool {
    let mut before = [const { String::new() }; 3];
    body.into_iter().any(|token| {
        if let TokenTree::Group(group) = token {
            return is_expanded(group.stream());
        }
        let found = before == ["__dblock", ":", ":"] && token.to_string() == "declared";
        before.rotate_left(1);
        before[2] = token.to_string();
        found
    })
}

/// The attribute above was expanded first, so this one would be around it.
pub(crate) fn stands_below(kind: Kind) -> String {
    let name = kind.name();
    format!(
        "this attribute stands below another one of dblock, which did not recognise it, so it would be the outer one of \
         the two; write it as `#[{name}(…)]` or `#[dblock::{name}(…)]`, or put it above"
    )
}

/// Whether a word is among the tokens, at any depth.
pub(crate) fn contains(tokens: TokenStream, word: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == word,
        TokenTree::Group(group) => contains(group.stream(), word),
        _ => false,
    })
}

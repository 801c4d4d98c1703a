//! Puts the parts together: the code that the attribute turns a function into.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Attribute, parse_quote};

use crate::args::Args;
use crate::desugared::Desugared;
use crate::errors::Errors;
use crate::function::{Function, Scope};
use crate::output::Output;
use crate::{capture, check, lock};

/// Expands the attribute. On mistakes the output has the errors and the function as it was written, so that
/// nothing else breaks.
pub(crate) fn attribute(args: TokenStream, item: TokenStream) -> TokenStream {
    expand(args, item.clone()).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        let item = without_lock(item);
        quote!(#error #item)
    })
}

/// The item without the lock, as far as that compiles.
fn without_lock(item: TokenStream) -> TokenStream {
    let Ok(mut function) = syn::parse2::<Function>(item.clone()) else {
        return item;
    };
    // Their mistakes are reported already.
    function.take_stacked();
    // The compiler refuses these as well, and a missing `async` breaks every `.await`.
    if function.sig.asyncness.is_some() {
        function.sig.constness = None;
        function.sig.abi = None;
    } else if check::contains(function.body.stream(), "await") {
        function.sig.asyncness = Some(parse_quote!(async));
        function.sig.constness = None;
    }
    // Arguments that only the attribute used must not be reported as unused.
    function
        .attrs
        .push(parse_quote!(#[allow(unused_variables, unused_mut)]));
    function.without_changes()
}

/// Expands the attribute.
///
/// # Errors
/// All mistakes of this attribute and of those stacked below it.
pub(crate) fn expand(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let mut locks = vec![Args::parse(args, Span::call_site(), &mut errors)];
    let mut function = match syn::parse2::<Function>(item) {
        Ok(function) => function,
        Err(error) => {
            errors.push(error);
            return errors.finish().map(|()| TokenStream::new());
        }
    };
    for attr in function.take_stacked() {
        locks.push(stacked(&attr, &mut errors));
    }
    let desugared = Desugared::of(&function);
    if desugared.is_none() {
        check::signature(&function, &mut errors);
        check::return_type(&function, &locks, &mut errors);
    }

    let mut scope = Scope::new(&function.sig);
    if let Some(desugared) = &desugared {
        scope.unpack(&desugared.unpacked_names);
    }
    for tx in locks.iter().filter_map(|lock| lock.tx.as_ref()) {
        check::transaction(tx, &function, &scope, &mut errors);
    }
    let keys: Vec<_> = locks
        .iter()
        .filter_map(|lock| Some(lock::key(lock.key.as_ref()?, &lock.krate, &scope, &mut errors)))
        .collect();
    if !errors.is_empty() {
        keys.iter()
            .filter_map(|key| key.explained.clone())
            .for_each(|error| errors.push(error));
    }
    errors.finish()?;

    let output = Output::new(&function, desugared.as_ref());
    let body = match &desugared {
        Some(desugared) => desugared.body.clone(),
        None => function.nested_body(),
    };
    let declared = output.declare(&locks[0].krate, &capture::used(&function.sig, &scope, &body));
    // From the inside out: the topmost attribute is the outermost lock.
    let mut body = quote!(#declared #body);
    for (lock, key) in locks.iter().zip(&keys).rev() {
        body = lock::under_lock(lock, &key.value, &function, &output, &body);
    }
    if let Some(desugared) = desugared {
        body = desugared.with_body(body);
    }
    Ok(function.with_body(&body))
}

fn stacked(attr: &Attribute, errors: &mut Errors) -> Args {
    let tokens = match &attr.meta {
        syn::Meta::List(list) => list.tokens.clone(),
        _ => TokenStream::new(),
    };
    Args::parse(tokens, attr.path().segments[0].ident.span(), errors)
}

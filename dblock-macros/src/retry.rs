//! The code that runs a body again after a conflict.

mod args;
mod check;

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::Ident;
use syn::ext::IdentExt;

pub(crate) use self::args::Args;
pub(crate) use self::check::{NEEDS_RESULT, arguments, is_transaction};
use crate::function::{Function, in_braces_of};
use crate::output::{Output, import, private};
use crate::values::known;

pub(crate) const GIVEN_TWICE: &str =
    "`#[optimistic_retry]` is given twice; one runs everything below it again";

/// Repeats a body. Each run has its own copies of `arguments`, so they must be `Copy`.
pub(crate) fn repeated(
    args: &Args,
    function: &Function,
    output: &Output,
    arguments: &[Ident],
    body: &TokenStream,
) -> TokenStream {
    let (import, private) = (import(&args.krate), private());
    let local = |name| Ident::new(name, Span::mixed_site());
    let (retry, result, pause) = (
        local("dblock_retry"),
        local("dblock_result"),
        local("dblock_pause"),
    );
    let options = options(args, &private, function);
    let reusable = arguments.iter().map(|argument| {
        let span = argument.span();
        quote_spanned!(span=> #private::Reusable::reusable(&#argument);)
    });
    let block = in_braces_of(function.body.span(), body.clone());
    let future = quote_spanned!(function.body.span()=> async move);
    let after = output.method(&private, "Repeatable", "after");
    quote! {
        #import
        #(#reusable)*
        let mut #retry = #private::Retry::new(#options);
        loop {
            match #after(#future #block.await, &mut #retry) {
                #private::Break(#result) => break #result,
                #private::Continue(#pause) => #pause.await,
            }
        }
    }
}

/// `RetryOptions::new()`, with a call for each argument that was given.
fn options(args: &Args, private: &TokenStream, function: &Function) -> TokenStream {
    let name = format!("::{}", function.sig.ident.unraw());
    let mut options = quote!(#private::RetryOptions::new());
    if let Some(times) = args.times {
        options.extend(quote!(.times(#times)));
    }
    if let Some((start, end)) = args.backoff {
        let (start, end) = (known(start, private), known(end, private));
        options.extend(quote!(.backoff(#start..#end)));
    }
    if let Some(within) = &args.within {
        let within = within.to_code(private);
        options.extend(quote!(.within(#within)));
    }
    quote!(#options.function(#private::concat!(#private::module_path!(), #name)))
}

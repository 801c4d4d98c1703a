//! The `LockOptions` of an attribute, as code that builds them.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::Ident;
use syn::ext::IdentExt;

use crate::args::Args;
use crate::function::Function;
use crate::values::{Length, OnLost, Sharing, Wait};

/// `LockOptions::new()`, with a call for each argument that was given.
pub(crate) fn options(lock: &Args, private: &TokenStream, function: &Function) -> TokenStream {
    let name = format!("::{}", function.sig.ident.unraw());
    let length = |length: &Length| length.to_code(private);
    let mut options = quote!(#private::LockOptions::new());
    let mut set = |method: &str, value: TokenStream| {
        let method = Ident::new(method, Span::call_site());
        options.extend(quote!(.#method(#value)));
    };
    if let Some(ttl) = &lock.ttl {
        set("ttl", length(ttl));
    }
    match &lock.wait {
        Some(Wait::For(wait)) => set("wait", length(wait)),
        Some(Wait::Forever) => set("wait_forever", TokenStream::new()),
        None => {}
    }
    if let Some(renew) = &lock.renew {
        set("renew", renew.to_token_stream());
    }
    match &lock.sharing {
        Some(Sharing::Unlimited) => set("shared", TokenStream::new()),
        Some(Sharing::Limit(limit)) => set("limit", limit.to_token_stream()),
        None => {}
    }
    match &lock.on_lost {
        Some(OnLost::Signal) => set("on_lost", quote!(#private::OnLost::Signal)),
        Some(OnLost::Cancel) | None => {}
    }
    if let Some(max_hold) = &lock.max_hold {
        set("max_hold", length(max_hold));
    }
    if let Some(hold_min) = &lock.hold_min {
        set("hold_min", length(hold_min));
    }
    set(
        "function",
        quote!(#private::concat!(#private::module_path!(), #name)),
    );
    options
}

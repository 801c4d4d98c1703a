//! The declared return type, and how the compiler learns of it.

use proc_macro2::{Delimiter, Group, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::visit_mut::{self, VisitMut};
use syn::{Ident, Path, ReturnType, Type, parse_quote};

use crate::desugared::Desugared;
use crate::function::Function;

/// The declared return type as it can be written inside the body.
pub(crate) struct Output {
    pub(crate) ty: Type,
    start: Span,
    end: Span,
}

impl Output {
    pub(crate) fn new(function: &Function, desugared: Option<&Desugared>) -> Self {
        let mut ty = match (&function.sig.output, desugared) {
            (_, Some(desugared)) => desugared.output.clone(),
            (ReturnType::Default, None) => parse_quote!(()),
            (ReturnType::Type(_, ty), None) => (**ty).clone(),
        };
        let name = function.sig.ident.span();
        let (start, end) = ends(&ty.to_token_stream()).unwrap_or((name, name));
        EraseImplTrait.visit_type_mut(&mut ty);
        Self { ty, start, end }
    }

    /// The conversion of a failure.
    pub(crate) fn or_error(&self, private: &TokenStream) -> TokenStream {
        self.method(private, "Fallible", "or_error")
    }

    /// A method of a trait that the type must implement. It has the span of the whole type, so that "cannot
    /// say that the lock failed" and the like are reported there.
    pub(crate) fn method(&self, private: &TokenStream, name: &str, method: &str) -> TokenStream {
        let ty = &self.ty;
        let (name, method) = (Ident::new(name, self.end), Ident::new(method, self.end));
        let open = quote_spanned!(self.start=> <);
        let path = quote_spanned!(self.end=> as #private::#name>::#method);
        quote!(#open #ty #path)
    }

    /// The call that runs a body once. All of it has the span of the type's first word, so that "cannot be
    /// remembered" is reported there. The compiler finds that for the call and for the await, and reports it
    /// once where both have one place.
    pub(crate) fn run_once(&self, arguments: TokenStream) -> TokenStream {
        let private = Ident::new(PRIVATE, self.start);
        let mut group = Group::new(Delimiter::Parenthesis, arguments);
        group.set_span(self.start);
        quote_spanned!(self.start=> #private::run_once #group.await)
    }

    /// Refuses a value that is a future: its work would be done when the lock is free again.
    pub(crate) fn no_future(&self, value: &Ident) -> TokenStream {
        let (import, private) = (private(), Ident::new(PRIVATE, self.end));
        let refuse = quote_spanned! {self.end=>
            #private::no_future(#private::Returned(&#value).given());
        };
        quote!({ use #import::NoFuture as _; #refuse })
    }

    /// Declares the type to the compiler before the body, so that a type error in the body points at the
    /// user's line. It also names the arguments that the block captures. This is reachable code that uses its
    /// values, so that no lint need be allowed, which a user's `forbid` would refuse.
    pub(crate) fn declare(&self, captured: &[Ident]) -> TokenStream {
        let (ty, private) = (&self.ty, private());
        let value = quote_spanned!(self.start=> #private::declared::<#ty>());
        // The lint has warned of the body's use already.
        let underscore = captured.iter().any(|name| name.to_string().starts_with('_'));
        let allow = underscore.then(|| quote!(#[allow(clippy::used_underscore_binding)]));
        let used = Ident::new("dblock_used", Span::mixed_site());
        quote! {
            #allow
            if false {
                #(let #used = #captured;)*
                return #value;
            }
        }
    }
}

/// `dblock::__private` in generated code.
pub(crate) const PRIVATE: &str = "__dblock";

/// It as code.
pub(crate) fn private() -> TokenStream {
    Ident::new(PRIVATE, Span::call_site()).into_token_stream()
}

/// Gives it that name. Where `crate = …` is missing or wrong, this is the one place that the compiler reports.
pub(crate) fn import(krate: &Path) -> TokenStream {
    let private = private();
    quote!(use #krate::__private as #private;)
}

/// `impl Trait` cannot be written in a body. `_` lets the compiler infer the type.
struct EraseImplTrait;

impl VisitMut for EraseImplTrait {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        if let Type::ImplTrait(_) = ty {
            *ty = parse_quote!(_);
        } else {
            visit_mut::visit_type_mut(self, ty);
        }
    }
}

/// The spans of the first and the last token. Stable Rust cannot join them, but the compiler does so itself
/// for code that starts at the one and ends at the other.
pub(crate) fn ends(tokens: &TokenStream) -> Option<(Span, Span)> {
    let mut spans = tokens.clone().into_iter().map(|token| token.span());
    let start = spans.next()?;
    Some((start, spans.last().unwrap_or(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_are_the_first_and_the_last_token() {
        for (code, columns) in [("Result<u8, E>", (0, 12)), ("u8", (0, 0))] {
            let (start, end) = ends(&code.parse().unwrap()).unwrap();
            assert_eq!((start.start().column, end.start().column), columns, "{code}");
        }
        assert!(ends(&TokenStream::new()).is_none());
    }
}

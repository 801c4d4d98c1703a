//! The declared return type, and how the compiler learns of it.

use proc_macro2::{Span, TokenStream};
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

    /// The function that runs a body once. It has the span of the type, so that "cannot be remembered" is
    /// reported there.
    pub(crate) fn run_once(&self, private: &TokenStream) -> TokenStream {
        let ty = &self.ty;
        let path = quote_spanned!(self.start=> #private::run_once);
        let close = quote_spanned!(self.end=> , _>);
        quote!(#path::<#ty #close)
    }

    /// Declares the type to the compiler before the body, so that a type error in the body points at the
    /// user's line. It also names the arguments that the block captures.
    pub(crate) fn declare(&self, krate: &Path, captured: &[Ident]) -> TokenStream {
        let ty = &self.ty;
        let value = quote_spanned!(self.start=> #krate::__private::declared::<#ty>());
        // After the `return`, only the capture analysis sees the captures, and no lint does.
        quote! {
            #[allow(
                unreachable_code, path_statements, unused_must_use,
                clippy::needless_return, clippy::used_underscore_binding
            )]
            if false {
                return #value;
                #(#captured;)*
            }
        }
    }
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

//! Puts the parts together: the code that the attributes turn a function into.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::parse::Parser;
use syn::{Attribute, FnArg, Ident, ReturnType, parse_quote};

use crate::desugared::Desugared;
use crate::errors::Errors;
use crate::function::{Function, Scope, bindings, is_closure};
use crate::kind::Kind;
use crate::layer::Layer;
use crate::output::Output;
use crate::{capture, check, retry};

/// Expands the attribute. On mistakes the output has the errors and the function as it was written, so that
/// nothing else breaks.
pub(crate) fn attribute(kind: Kind, args: TokenStream, item: TokenStream) -> TokenStream {
    if syn::parse2::<Ident>(args.clone()).is_ok_and(|word| word == MENTION) {
        return TokenStream::new();
    }
    expand(kind, args.clone(), item.clone()).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        let item = bare(kind, args, item);
        quote!(#error #item)
    })
}

/// The item without our attributes, as far as that compiles.
fn bare(kind: Kind, args: TokenStream, item: TokenStream) -> TokenStream {
    let Ok(mut function) = Function::read(item.clone(), kind) else {
        // Behind an error, an expression would be one more.
        return if is_closure.parse2(item.clone()).unwrap_or_default() {
            TokenStream::new()
        } else {
            item
        };
    };
    // Their mistakes are reported already.
    let layer = Layer::parse(kind, args, Span::call_site(), &mut Errors::default());
    let imports = imports(kind, &function.take_stacked(layer.krate()));
    // The compiler refuses these as well, and a missing `async` breaks every `.await`.
    if function.sig.asyncness.is_some() {
        function.sig.constness = None;
        function.sig.abi = None;
    } else if function.lacks_async {
        function.sig.asyncness = Some(parse_quote!(async));
        function.sig.constness = None;
    }
    let mentions = mentions(&function);
    if imports.is_empty() && mentions.is_empty() {
        return function.without_changes();
    }
    let body = function.body.stream();
    function.with_body(&quote!(#imports #mentions #body))
}

/// Mentions arguments, so that those that only the attribute uses are not reported as unused.
fn mentions(function: &Function) -> TokenStream {
    let inputs = function.sig.inputs.iter();
    let mut names = Vec::new();
    inputs
        .filter(|input| !capture::is_conditional(input))
        .for_each(|input| {
            if let FnArg::Typed(argument) = input {
                bindings(&argument.pat, &mut names);
            }
        });
    let mentions = names.iter().map(|name| {
        let mutability = function.mutability(name);
        quote!(let _ = &#mutability #name;)
    });
    mentions.collect()
}

/// The argument of an attribute that is only a mention of its name, and leaves nothing behind.
const MENTION: &str = "__dblock_mention";

/// Mentions the attributes that were removed from below this one, because nothing else uses their imports.
/// The import of `kind` is used anyway.
fn imports(kind: Kind, stacked: &[(Kind, Attribute)]) -> TokenStream {
    let others = stacked.iter().filter(|(other, _)| *other != kind);
    others
        .map(|(_, attr)| {
            let (path, mention) = (attr.path(), Ident::new(MENTION, Span::call_site()));
            quote!(#[#path(#mention)] const _: () = ();)
        })
        .collect()
}

/// Expands the attribute.
///
/// # Errors
/// All mistakes of this attribute and of those stacked below it.
pub(crate) fn expand(kind: Kind, args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let mut layers = vec![Layer::parse(kind, args, Span::call_site(), &mut errors)];
    let mut function = match Function::read(item, kind) {
        Ok(function) => function,
        Err(error) => {
            errors.push(error);
            return errors.finish().map(|()| TokenStream::new());
        }
    };
    let stacked = function.take_stacked(layers[0].krate());
    if check::is_expanded(function.body.stream()) {
        errors.push(syn::Error::new(Span::call_site(), check::stands_below(kind)));
    }
    for (kind, attr) in &stacked {
        if *kind == Kind::Retry && layers.iter().any(Layer::is_retry) {
            errors.push(syn::Error::new_spanned(attr, retry::GIVEN_TWICE));
        }
        layers.push(Layer::stacked(*kind, attr, &mut errors));
    }
    let desugared = Desugared::of(&function);
    if desugared.is_none() {
        // A lock alone is content with a function that blocks.
        let kinds = stacked.iter().map(|(kind, _)| *kind);
        let strictest = kinds.chain([kind]).find(|kind| *kind != Kind::Lock);
        check::signature(&function, strictest.unwrap_or(kind), &mut errors);
        if matches!(function.sig.output, ReturnType::Default)
            && let Some(message) = layers.iter().find_map(Layer::no_return_type)
        {
            errors.push(syn::Error::new(function.sig.ident.span(), message));
        }
    }

    let mut scope = Scope::new(&function.sig);
    if let Some(desugared) = &desugared {
        scope.unpack(&desugared.unpacked_names);
    }
    let output = Output::new(&function, desugared.as_ref());
    check::returns(&output.ty, &mut errors);
    for layer in &layers {
        layer.check(&function, &scope, &output, &mut errors);
    }
    let keys: Vec<_> = layers
        .iter()
        .map(|layer| layer.key(&scope, &mut errors))
        .collect();
    if !errors.is_empty() {
        keys.iter()
            .flatten()
            .flat_map(|key| key.explained.clone())
            .for_each(|error| errors.push(error));
    }
    errors.finish()?;

    let body = match &desugared {
        Some(desugared) => desugared.body.clone(),
        None => function.nested_body(),
    };
    let declared = output.declare(&capture::used(&function.sig, &scope, &body));
    // From the inside out: the topmost attribute is the outermost layer.
    let mut body = quote!(#declared #body);
    for (layer, key) in layers.iter().zip(&keys).rev() {
        body = layer.around(&body, key.as_ref(), &function, &scope, &output);
    }
    if let Some(desugared) = desugared {
        body = desugared.with_body(body);
    }
    let imports = imports(kind, &stacked);
    Ok(function.with_body(&quote!(#imports #body)))
}

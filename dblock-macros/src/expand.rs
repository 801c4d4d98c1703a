//! Puts the parts together: what the attribute turns a function into.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Expr, ReturnType, Type, parse_quote};

use crate::args::{Args, Key, Length, OnLost, Wait};
use crate::capture;
use crate::desugared::Desugared;
use crate::errors::Errors;
use crate::function::{Function, Scope};
use crate::template;

/// The attribute with everything that can go wrong: the errors, and the function as it was written, so
/// that nothing else breaks.
pub(crate) fn attribute(args: TokenStream, item: TokenStream) -> TokenStream {
    expand(args, item.clone()).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        let item = without_lock(item);
        quote!(#error #item)
    })
}

/// The item as far as it can stand without the lock.
fn without_lock(item: TokenStream) -> TokenStream {
    let Ok(mut function) = syn::parse2::<Function>(item.clone()) else {
        return item;
    };
    // Their mistakes are reported already.
    function.take_stacked();
    // These are refused by the compiler as well, and a missing `async` breaks every `.await`.
    if function.sig.asyncness.is_some() {
        function.sig.constness = None;
        function.sig.abi = None;
    } else if contains(function.body.stream(), "await") {
        function.sig.asyncness = Some(parse_quote!(async));
        function.sig.constness = None;
    }
    // What only the attribute used is not unused.
    function
        .attrs
        .push(parse_quote!(#[allow(unused_variables, unused_mut)]));
    let body = function.body.stream();
    function.with_body(&body)
}

fn contains(tokens: TokenStream, word: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == word,
        TokenTree::Group(group) => contains(group.stream(), word),
        _ => false,
    })
}

/// The attribute.
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
        check_signature(&function, &mut errors);
        check_return_type(&function, &locks, &mut errors);
    }

    let mut scope = Scope::new(&function.sig);
    if let Some(desugared) = &desugared {
        scope.unpack(&desugared.unpacked_names);
    }
    let keys: Vec<_> = locks
        .iter()
        .filter_map(|lock| Some(key(lock.key.as_ref()?, &lock.krate, &scope, &mut errors)))
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
        None => function.body.stream(),
    };
    let declared = declare(&function, &scope, &output, &locks[0], &body);
    // From the inside out; the topmost attribute is the outermost lock.
    let mut body = quote!(#declared #body);
    for (lock, key) in locks.iter().zip(&keys).rev() {
        body = under_lock(lock, &key.value, &function, &output, &body);
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

fn check_signature(function: &Function, errors: &mut Errors) {
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

/// Without a return type nothing can carry a failure. Whether a given type can is the compiler's to say.
fn check_return_type(function: &Function, locks: &[Args], errors: &mut Errors) {
    if matches!(function.sig.output, ReturnType::Default) && locks.iter().any(|lock| lock.on_error.is_none())
    {
        errors.push(syn::Error::new(
            function.sig.ident.span(),
            "this function returns nothing, so it cannot say that the lock failed; return `Result<(), E>` \
             where `E: From<dblock::LockError>`, or say what to do with `on_error = |error| …`",
        ));
    }
}

/// The declared return type as it can be written inside the body.
struct Output {
    ty: Type,
    start: Span,
    end: Span,
}

impl Output {
    fn new(function: &Function, desugared: Option<&Desugared>) -> Self {
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

    /// The conversion of a failure. It spans the whole type, so that "cannot say that the lock failed" is said
    /// there.
    fn or_error(&self, private: &TokenStream) -> TokenStream {
        let ty = &self.ty;
        let open = quote_spanned!(self.start=> <);
        let path = quote_spanned!(self.end=> as #private::Fallible>::or_error);
        quote!(#open #ty #path)
    }
}

/// `impl Trait` names no type inside a body; `_` lets the compiler find it.
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

/// Tells the compiler the return type before it sees the body, so that a type error in the body points at
/// the user's line, and names what the block captures.
fn declare(
    function: &Function,
    scope: &Scope,
    output: &Output,
    lock: &Args,
    body: &TokenStream,
) -> TokenStream {
    let krate = &lock.krate;
    let ty = &output.ty;
    let captured = capture::used(&function.sig, scope, body);
    let value = quote_spanned!(output.start=> #krate::__private::declared::<#ty>());
    // Behind the `return` the captures are seen by the capture analysis alone, and by no lint.
    quote! {
        #[allow(unreachable_code, path_statements, unused_must_use, clippy::needless_return, clippy::used_underscore_binding)]
        if false {
            return #value;
            #(#captured;)*
        }
    }
}

/// A key in generated code.
struct KeyCode {
    /// An expression of type `String`.
    value: TokenStream,
    /// A mistake that the compiler will find in `value` and can point at better than a macro can. It counts
    /// only if `value` is never compiled.
    explained: Option<syn::Error>,
}

fn key(key: &Key, krate: &syn::Path, scope: &Scope, errors: &mut Errors) -> KeyCode {
    let formatted = |format: &syn::LitStr, values: &[Expr]| {
        quote_spanned! {format.span()=>
            #krate::__private::format(#krate::__private::format_args!(#format #(, #values)*))
        }
    };
    let literal = match key {
        Key::Expr(value) => {
            let value = borrowed(value);
            return KeyCode {
                value: quote!(#krate::__private::key(#value)),
                explained: None,
            };
        }
        Key::Template(literal) => literal,
    };
    match template::parse(literal, scope) {
        Ok(template) => KeyCode {
            value: formatted(&template.format, &template.values),
            explained: None,
        },
        Err(refused) if refused.compiler_points_inside => KeyCode {
            value: formatted(literal, &[]),
            explained: Some(refused.error),
        },
        Err(refused) => {
            errors.push(refused.error);
            KeyCode {
                value: TokenStream::new(),
                explained: None,
            }
        }
    }
}

/// `&(expression)`, with the place of the expression.
fn borrowed(value: &Expr) -> TokenStream {
    let tokens = value.to_token_stream();
    let (start, end) = ends(&tokens).unwrap_or_else(|| (Span::call_site(), Span::call_site()));
    let reference = quote_spanned!(start=> &);
    let mut group = Group::new(Delimiter::Parenthesis, tokens);
    group.set_span(end);
    quote!(#reference #group)
}

/// The places of the first and the last token. Stable Rust cannot join them, but the compiler does so itself
/// for code that starts at the one and ends at the other.
fn ends(tokens: &TokenStream) -> Option<(Span, Span)> {
    let mut spans = tokens.clone().into_iter().map(|token| token.span());
    let start = spans.next()?;
    Some((start, spans.last().unwrap_or(start)))
}

/// Wraps a body in one lock.
///
/// What the attribute computes before the body is in statements of its own, so that no temporary of it lives
/// across the await.
fn under_lock(
    lock: &Args,
    key: &TokenStream,
    function: &Function,
    output: &Output,
    body: &TokenStream,
) -> TokenStream {
    let krate = &lock.krate;
    let private = quote!(#krate::__private);
    let locals = Locals::new();
    let Locals {
        key: key_name,
        manager: manager_name,
        options: options_name,
        ..
    } = &locals;
    let options = options(lock, &private, function);
    let (manager, given) = match &lock.manager {
        Some(manager) => {
            let manager = borrowed(manager);
            (
                quote!(let #manager_name = #private::manager(#manager);),
                quote!(#private::Some(&#manager_name)),
            )
        }
        None => (TokenStream::new(), quote!(#private::None)),
    };
    let mut block = Group::new(Delimiter::Brace, body.clone());
    block.set_span(function.body.span());
    let future = quote_spanned!(function.body.span()=> async move);
    let result = quote!(#private::run(#given, #key_name, #options_name, #future #block).await);
    let result = returned(lock, &private, output, &locals, &result);
    quote! {
        let #key_name = #key;
        #manager
        let #options_name = #options;
        #result
    }
}

/// Turns the result of the lock into the function's return value.
fn returned(
    lock: &Args,
    private: &TokenStream,
    output: &Output,
    locals: &Locals,
    result: &TokenStream,
) -> TokenStream {
    let Locals {
        output: value, error, ..
    } = locals;
    let busy = lock
        .on_busy
        .as_ref()
        .map(|on_busy| quote!(#private::Err(#error) if #error.is_busy() => #on_busy,));
    let ty = &output.ty;
    match (&lock.on_error, busy) {
        (Some(on_error), busy) => quote! {
            match #result {
                #private::Ok(#value) => #value,
                #busy
                #private::Err(#error) => #private::on_error::<#ty>(#on_error, #error),
            }
        },
        (None, Some(busy)) => {
            let convert = output.or_error(private);
            quote! {
                match #result {
                    #busy
                    #value => #convert(#value),
                }
            }
        }
        (None, None) => {
            let convert = output.or_error(private);
            quote!(#convert(#result))
        }
    }
}

/// Names of the generated code. The user's code can neither see them nor hide them.
struct Locals {
    key: Ident,
    manager: Ident,
    options: Ident,
    output: Ident,
    error: Ident,
}

impl Locals {
    fn new() -> Self {
        let name = |name| Ident::new(name, Span::mixed_site());
        Self {
            key: name("key"),
            manager: name("manager"),
            options: name("options"),
            output: name("output"),
            error: name("error"),
        }
    }
}

fn options(lock: &Args, private: &TokenStream, function: &Function) -> TokenStream {
    let name = format!("::{}", function.sig.ident.unraw());
    let length = |length: &Length| match length {
        Length::Known(duration) => {
            let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            quote!(#private::Duration::from_millis(#millis))
        }
        Length::Expr(value) => value.to_token_stream(),
    };
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

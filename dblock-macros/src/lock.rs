//! The code that takes the locks of one attribute around a body.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Expr, LitStr};

use crate::args::Args;
use crate::errors::Errors;
use crate::function::{Function, Scope, in_braces_of};
use crate::options::options;
use crate::output::{Output, PRIVATE, ends, import, private};
use crate::values::{Key, Keys};
use crate::{constant, template};

/// The key of a lock in generated code, or all keys.
pub(crate) struct KeyCode {
    /// An expression of type `String`, or for several keys an array of them.
    pub(crate) value: TokenStream,
    /// Mistakes that the compiler will find in `value` too, and can report at a better place than a macro
    /// can. They count only if `value` is never compiled.
    pub(crate) explained: Vec<syn::Error>,
}

pub(crate) fn keys(keys: &Keys, scope: &Scope, errors: &mut Errors) -> KeyCode {
    let all = match keys {
        Keys::One(one) => return key(one, scope, errors),
        Keys::All(all) => all,
    };
    let all: Vec<KeyCode> = all.iter().map(|one| key(one, scope, errors)).collect();
    let values = all.iter().map(|code| &code.value);
    KeyCode {
        value: quote!([#(#values),*]),
        explained: all.iter().flat_map(|code| code.explained.clone()).collect(),
    }
}

fn key(key: &Key, scope: &Scope, errors: &mut Errors) -> KeyCode {
    let private = private();
    let formatted = |format: &LitStr, values: &[Expr]| {
        quote_spanned! {format.span()=>
            #private::format(#private::format_args!(#format #(, #values)*))
        }
    };
    let literal = match key {
        Key::Expr(value) => {
            constant::refuse(value, scope, errors);
            let value = borrowed(value);
            return KeyCode {
                value: quote!(#private::key(#value)),
                explained: Vec::new(),
            };
        }
        Key::Template(literal) => literal,
    };
    match template::parse(literal, scope) {
        Ok(template) => KeyCode {
            value: formatted(&template.format, &template.values),
            explained: Vec::new(),
        },
        Err(refused) if refused.compiler_points_inside => KeyCode {
            value: formatted(literal, &[]),
            explained: vec![refused.error],
        },
        Err(refused) => {
            errors.push(refused.error);
            KeyCode {
                value: TokenStream::new(),
                explained: Vec::new(),
            }
        }
    }
}

/// `&(expression)`, with the span of the expression.
pub(crate) fn borrowed(value: &Expr) -> TokenStream {
    let tokens = value.to_token_stream();
    let (start, end) = ends(&tokens).unwrap_or_else(|| (Span::call_site(), Span::call_site()));
    let reference = quote_spanned!(start=> &);
    let mut group = Group::new(Delimiter::Parenthesis, tokens);
    group.set_span(end);
    quote!(#reference #group)
}

/// Wraps a body in the locks of one attribute.
pub(crate) fn under_lock(
    lock: &Args,
    key: &TokenStream,
    function: &Function,
    scope: &Scope,
    output: &Output,
    body: &TokenStream,
) -> TokenStream {
    let private = private();
    let tx = lock.tx.as_ref().map(|tx| scope.argument(tx));
    let mutable = tx.as_ref().and_then(|tx| function.mutability(tx));
    let options = options(lock, &private, function);
    let run = match lock.keys {
        Some(Keys::All(_)) => quote!(run_all),
        Some(Keys::One(_)) | None => quote!(run),
    };
    wrapped(
        lock,
        key,
        &options,
        function,
        output,
        body,
        |locals, given, future| {
            let Locals {
                key,
                options,
                hold,
                output: value,
                ..
            } = locals;
            if function.is_blocking {
                let called = quote!(#private::blocking_run(#given, #key, &#options, #future));
                let no_future = output.no_future(value);
                return quote!({ let #value = #called; #no_future #value });
            }
            let Some(tx) = &tx else {
                return quote!(#private::#run(#given, #key, #options, #future).await);
            };
            // Where the argument is named, the compiler says that it is no transaction, or that there is none.
            // `&mut *tx` would be an error of its own where it is none. The methods have names such as nobody else
            // gives.
            let lend = quote_spanned!(tx.span()=> #tx.dblock_lend());
            let borrow = quote!({ use #private::Lend as _; #lend });
            let lend = quote_spanned!(tx.span()=> #tx.dblock_lend_to_body());
            let borrow_of_body = quote!({ use #private::{LendToBody as _, NoLoan as _}; #lend });
            let sql = |function| {
                let name = |name| Ident::new(name, tx.span());
                let (private, function) = (name(PRIVATE), name(function));
                quote_spanned!(tx.span()=> #private::sql!(#function))
            };
            let (borrowed, argument) = (sql("borrowed"), sql("Argument"));
            let (enter_in, run_in, end_in) = (sql("enter_in"), sql("run_in"), sql("end_in"));
            let borrowed = quote_spanned!(tx.span()=> #borrowed(#argument(&#tx).given()));
            // The lock uses the argument, also where the body does not, or not as mutable.
            let used = quote!(let _ = &#mutable #tx;);
            quote! {{
                {
                    use #private::NoTransaction as _;
                    #borrowed;
                }
                #used
                match #enter_in(#given, #key, #options, #borrow).await {
                    #private::Ok(#hold) => {
                        let #value = {
                            // The body takes a borrow, so that the transaction is there after it, and knows it by this
                            // name alone.
                            #[allow(clippy::shadow_reuse, clippy::shadow_same)]
                            let #mutable #tx = #borrow_of_body;
                            #used
                            #run_in(&#hold, #future).await
                        };
                        #end_in(#hold, #value, |#value| {
                            use #private::NoResult as _;
                            #private::Value(#value).is_error()
                        }, #borrow).await
                    }
                    #private::Err(#value) => #private::Err(#value),
                }
            }}
        },
    )
}

/// Wraps a body in one run, whose result is remembered.
pub(crate) fn under_run(
    lock: &Args,
    key: &TokenStream,
    options: &TokenStream,
    function: &Function,
    output: &Output,
    body: &TokenStream,
) -> TokenStream {
    wrapped(
        lock,
        key,
        options,
        function,
        output,
        body,
        |locals, given, future| {
            let Locals { key, options, .. } = locals;
            output.run_once(quote!(#given, #key, #options, #future))
        },
    )
}

/// Wraps a body in a call of the runtime, which `call` writes from the names of the locals, the manager, and
/// the body as a future, or as a closure in a function that is not async.
///
/// Everything that the attribute computes before the body is in statements of its own, so that no temporary
/// lives across the await.
fn wrapped(
    lock: &Args,
    key: &TokenStream,
    options: &TokenStream,
    function: &Function,
    output: &Output,
    body: &TokenStream,
    call: impl FnOnce(&Locals, &TokenStream, &TokenStream) -> TokenStream,
) -> TokenStream {
    let private = private();
    let locals = Locals::new();
    let (manager, given) = manager(lock, &private, &locals.manager);
    let block = in_braces_of(function.body.span(), body.clone());
    let body = if function.is_blocking {
        quote_spanned!(function.body.span()=> move || #block)
    } else {
        quote_spanned!(function.body.span()=> async move #block)
    };
    let result = call(&locals, &given, &body);
    let result = returned(lock, &private, output, &locals, &result);
    let (key_name, options_name) = (&locals.key, &locals.options);
    let import = import(&lock.krate);
    quote! {
        #import
        let #key_name = #key;
        #manager
        let #options_name = #options;
        #result
    }
}

/// The statement that makes the manager, and what is given to the runtime.
fn manager(lock: &Args, private: &TokenStream, name: &Ident) -> (TokenStream, TokenStream) {
    match &lock.manager {
        Some(manager) => {
            let (start, end) = ends(&manager.to_token_stream()).unwrap_or_else(|| (name.span(), name.span()));
            let manager = borrowed(manager);
            // By itself the expression has its own type, whatever derefs to a manager. `&*(name)` spans it, so
            // that the compiler points at the whole of it.
            let located = Ident::new(&name.to_string(), name.span().located_at(end));
            let reference = quote_spanned!(start=> &*);
            let mut group = Group::new(Delimiter::Parenthesis, located.to_token_stream());
            group.set_span(end);
            (
                quote!(let #name = match #manager { #name => #private::manager(#reference #group) };),
                quote!(#private::Some(&#name)),
            )
        }
        None => (TokenStream::new(), quote!(#private::None)),
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

/// Names in the generated code. The user's code can neither see nor shadow them. They are such as nobody gives
/// to an argument, because `capture` reads generated code by names alone.
struct Locals {
    key: Ident,
    manager: Ident,
    options: Ident,
    hold: Ident,
    output: Ident,
    error: Ident,
}

impl Locals {
    fn new() -> Self {
        let name = |name| Ident::new(name, Span::mixed_site());
        Self {
            key: name("dblock_key"),
            manager: name("dblock_manager"),
            options: name("dblock_options"),
            hold: name("dblock_hold"),
            output: name("dblock_output"),
            error: name("dblock_error"),
        }
    }
}

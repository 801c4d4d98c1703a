//! The annotated function, taken apart as far as the attribute needs. Its body stays a token stream, so
//! that half-typed code passes through.

use proc_macro2::{Delimiter, Group, Span, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::{Attribute, FnArg, Ident, Pat, Signature, Token, Visibility};

use crate::suggest;

/// An async function with its body.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) inner_attrs: Vec<Attribute>,
    vis: Visibility,
    defaultness: Option<Token![default]>,
    pub(crate) sig: Signature,
    pub(crate) body: Group,
}

/// What follows a signature.
enum End {
    Body(Group),
    Semicolon,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        refuse_other_items(input)?;
        let defaultness = input.parse()?;
        let sig: Signature = input.parse()?;
        let end = if input.parse::<Option<Token![;]>>()?.is_some() {
            End::Semicolon
        } else {
            // A `$body:block` of a `macro_rules!` macro stands in an invisible group, which this looks through.
            let braces = input.step(|cursor| match cursor.group(Delimiter::Brace) {
                Some((inside, span, rest)) => {
                    let mut group = Group::new(Delimiter::Brace, inside.token_stream());
                    group.set_span(span.join());
                    Ok((group, rest))
                }
                None => Err(cursor.error("expected the body of the function")),
            })?;
            End::Body(braces)
        };
        let End::Body(body) = end else {
            return Err(syn::Error::new(
                sig.ident.span(),
                format!(
                    "`{}` has no body to run under the lock; put the attribute on the implementations, \
                     or give the method a default body",
                    sig.ident
                ),
            ));
        };
        let (inner_attrs, rest) = split_inner_attributes(body.stream())?;
        let mut group = Group::new(Delimiter::Brace, rest);
        group.set_span(body.span());
        Ok(Self {
            attrs,
            inner_attrs,
            vis,
            defaultness,
            sig,
            body: group,
        })
    }
}

/// A struct or module gets one error that says what was found.
fn refuse_other_items(input: ParseStream<'_>) -> syn::Result<()> {
    let ahead = input.fork();
    let word = ahead
        .call(Ident::parse_any)
        .map(|word| word.to_string())
        .unwrap_or_default();
    let found = match word.as_str() {
        "struct" => "a struct",
        "enum" => "an enum",
        "union" => "a union",
        "mod" => "a module",
        "trait" => "a trait",
        "impl" => "an impl block",
        "type" => "a type alias",
        "static" => "a static",
        "use" => "an import",
        "macro_rules" => "a macro",
        "let" => "a statement",
        "const"
            if !ahead.peek(Token![fn])
                && !ahead.peek(Token![async])
                && !ahead.peek(Token![unsafe])
                && !ahead.peek(Token![extern]) =>
        {
            "a constant"
        }
        _ => return Ok(()),
    };
    let hint = match word.as_str() {
        "impl" | "trait" => "; put it on each method that needs the lock",
        _ => "",
    };
    Err(syn::Error::new(
        input.span(),
        format!("`#[distributed_lock]` goes on an async function, found {found}{hint}"),
    ))
}

/// `#![…]` at the start of a body belongs to the function and stays in front.
fn split_inner_attributes(body: TokenStream) -> syn::Result<(Vec<Attribute>, TokenStream)> {
    let parser = |input: ParseStream<'_>| Ok((input.call(Attribute::parse_inner)?, input.parse()?));
    parser.parse2(body)
}

impl Function {
    /// Takes the further `#[distributed_lock]` attributes below the one that is being expanded.
    pub(crate) fn take_stacked(&mut self) -> Vec<Attribute> {
        let is_ours = |attr: &Attribute| {
            attr.path()
                .segments
                .last()
                .is_some_and(|segment| segment.ident == "distributed_lock")
        };
        let (ours, others) = std::mem::take(&mut self.attrs).into_iter().partition(is_ours);
        self.attrs = others;
        ours
    }

    /// The function with another body.
    pub(crate) fn with_body(&self, statements: &TokenStream) -> TokenStream {
        let Self {
            attrs,
            inner_attrs,
            vis,
            defaultness,
            sig,
            body,
        } = self;
        let mut block = TokenStream::new();
        for attr in inner_attrs {
            attr.to_tokens(&mut block);
        }
        block.extend(statements.clone());
        let mut group = Group::new(Delimiter::Brace, block);
        group.set_span(body.span());
        quote::quote!(#(#attrs)* #vis #defaultness #sig #group)
    }
}

/// The names that a key can use.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) receiver: Option<Span>,
    pub(crate) arguments: Vec<Ident>,
}

impl Scope {
    pub(crate) fn new(sig: &Signature) -> Self {
        let mut arguments = Vec::new();
        for input in &sig.inputs {
            if let FnArg::Typed(argument) = input {
                bindings(&argument.pat, &mut arguments);
            }
        }
        Self {
            receiver: sig.receiver().map(|receiver| receiver.self_token.span),
            arguments,
        }
    }

    /// Adds names that the body takes from arguments before anything else happens.
    pub(crate) fn unpack(&mut self, names: &[Ident]) {
        self.arguments
            .retain(|argument| !argument.to_string().starts_with("__arg"));
        self.arguments.extend_from_slice(names);
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Ident> {
        self.arguments.iter().find(|argument| argument.unraw() == name)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let receiver = self.receiver.map(|_| "self".to_owned());
        receiver
            .into_iter()
            .chain(self.arguments.iter().map(|argument| argument.unraw().to_string()))
            .collect()
    }

    /// The name of the argument at a position, or of some argument, for hints.
    pub(crate) fn example(&self, position: usize) -> String {
        let names = self.names();
        names
            .get(position)
            .or(names.first())
            .cloned()
            .unwrap_or_else(|| "order_id".into())
    }

    /// A sentence with all arguments.
    pub(crate) fn listed(&self) -> String {
        match self.names().as_slice() {
            [] => "It has no arguments".into(),
            [one] => format!("The only argument is `{one}`"),
            names => format!("The arguments are {}", suggest::list(names, "and")),
        }
    }
}

/// Collects the names that a pattern binds.
pub(crate) fn bindings(pat: &Pat, names: &mut Vec<Ident>) {
    match pat {
        Pat::Ident(pat) => {
            names.push(pat.ident.clone());
            if let Some((_, inner)) = &pat.subpat {
                bindings(inner, names);
            }
        }
        Pat::Paren(pat) => bindings(&pat.pat, names),
        Pat::Reference(pat) => bindings(&pat.pat, names),
        Pat::Type(pat) => bindings(&pat.pat, names),
        Pat::Slice(pat) => pat.elems.iter().for_each(|pat| bindings(pat, names)),
        Pat::Tuple(pat) => pat.elems.iter().for_each(|pat| bindings(pat, names)),
        Pat::TupleStruct(pat) => pat.elems.iter().for_each(|pat| bindings(pat, names)),
        Pat::Struct(pat) => pat.fields.iter().for_each(|field| bindings(&field.pat, names)),
        // All cases of an or-pattern bind the same names.
        Pat::Or(pat) => pat.cases.iter().take(1).for_each(|pat| bindings(pat, names)),
        _ => {}
    }
}

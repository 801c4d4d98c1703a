//! The annotated function, split as far as the attribute needs. Its body stays a token stream, so that
//! half-typed code passes through.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, Expr, FnArg, Ident, Pat, Path, Signature, Token, Visibility};

use crate::desugared::future_output;
use crate::kind::Kind;
use crate::{check, suggest};

/// A function with its body.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) inner_attrs: Vec<Attribute>,
    vis: Visibility,
    defaultness: Option<Token![default]>,
    pub(crate) sig: Signature,
    pub(crate) body: Group,
    /// It is not async, and gives no future.
    pub(crate) is_blocking: bool,
    /// Its `async` was forgotten.
    pub(crate) lacks_async: bool,
}

impl Function {
    /// Reads the item under an attribute of the kind, which is named in the messages.
    pub(crate) fn read(item: TokenStream, kind: Kind) -> syn::Result<Self> {
        (|input: ParseStream<'_>| Self::parse(input, kind)).parse2(item)
    }

    fn parse(input: ParseStream<'_>, kind: Kind) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        refuse_other_items(input, kind)?;
        let defaultness = input.parse()?;
        let sig: Signature = input.parse()?;
        if input.parse::<Option<Token![;]>>()?.is_some() {
            return Err(syn::Error::new(
                sig.ident.span(),
                format!(
                    "`{}` has no body to {}; put the attribute on the implementations, or give the method a default body",
                    sig.ident,
                    kind.with_body()
                ),
            ));
        }
        let body = input.step(|cursor| {
            let body = cursor
                .token_tree()
                .and_then(|(token, rest)| Some((braces(token)?, rest)));
            body.ok_or_else(|| cursor.error("expected the body of the function"))
        })?;
        let (inner_attrs, body) = split_inner_attributes(body)?;
        let is_async = sig.asyncness.is_some() || future_output(&sig.output).is_some();
        let contains = |word| check::contains(body.stream(), word);
        let lacks_async = !is_async && contains("await") && !contains("block_on");
        let is_blocking = !is_async && !lacks_async && !check::was_made_to_block(body.stream());
        Ok(Self {
            attrs,
            inner_attrs,
            vis,
            defaultness,
            sig,
            body,
            is_blocking,
            lacks_async,
        })
    }
}

/// The body itself. A `$body:block` of a `macro_rules!` macro is wrapped in an invisible group.
fn braces(token: TokenTree) -> Option<Group> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
        TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
            group.stream().into_iter().next().and_then(braces)
        }
        _ => None,
    }
}

/// For a struct or module, gives one error that says what was found.
fn refuse_other_items(input: ParseStream<'_>, kind: Kind) -> syn::Result<()> {
    let ahead = input.fork();
    let word = ahead
        .call(Ident::parse_any)
        .map(|word| word.to_string())
        .unwrap_or_default();
    let found = match word.as_str() {
        _ if is_closure(&input.fork()).unwrap_or_default() => "a closure",
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
    let hint = match (found, kind) {
        ("a trait" | "an impl block", Kind::Lock) => "; put it on each method that needs the lock",
        ("a trait" | "an impl block", Kind::Once) => "; put it on each method that is to run once",
        ("a trait" | "an impl block", Kind::Retry) => "; put it on each method that is to run again",
        ("a closure" | "a statement", _) => {
            "; write the code as an `async fn` with this attribute, and call that"
        }
        _ => "",
    };
    Err(syn::Error::new(
        input.span(),
        format!(
            "`#[{}]` goes on an async function, found {found}{hint}",
            kind.name()
        ),
    ))
}

/// Whether it is a closure, perhaps `async` or `move`, and perhaps with other attributes.
pub(crate) fn is_closure(input: ParseStream<'_>) -> syn::Result<bool> {
    input.call(Attribute::parse_outer)?;
    while input.peek(Token![async]) || input.peek(Token![move]) || input.peek(Token![static]) {
        input.call(Ident::parse_any)?;
    }
    let found = input.peek(Token![|]) || input.peek(Token![||]);
    input.parse::<TokenStream>()?;
    Ok(found)
}

/// `#![…]` at the start of a body belongs to the function and stays in front.
fn split_inner_attributes(body: Group) -> syn::Result<(Vec<Attribute>, Group)> {
    let parser = |input: ParseStream<'_>| Ok((input.call(Attribute::parse_inner)?, input.parse()?));
    let (attrs, rest) = parser.parse2(body.stream())?;
    if attrs.is_empty() {
        return Ok((attrs, body));
    }
    Ok((attrs, in_braces_of(body.span(), rest)))
}

/// Replaces the code of a body, and keeps its braces.
pub(crate) fn in_braces_of(body: Span, code: TokenStream) -> Group {
    let mut group = Group::new(Delimiter::Brace, code);
    group.set_span(body);
    group
}

impl Function {
    /// Takes those of our attributes that stand below the one that is being expanded.
    pub(crate) fn take_stacked(&mut self, krate: &Path) -> Vec<(Kind, Attribute)> {
        let mut stacked = Vec::new();
        for attr in std::mem::take(&mut self.attrs) {
            match Kind::of(&attr, krate) {
                Some(kind) => stacked.push((kind, attr)),
                None => self.attrs.push(attr),
            }
        }
        stacked
    }

    /// The `mut` of an argument.
    pub(crate) fn mutability(&self, argument: &Ident) -> Option<Token![mut]> {
        self.sig.inputs.iter().find_map(|input| match input {
            FnArg::Typed(typed) => match &*typed.pat {
                Pat::Ident(pat) if pat.ident == *argument => pat.mutability,
                _ => None,
            },
            FnArg::Receiver(_) => None,
        })
    }

    /// The body as an expression of a block. It keeps its own braces, so that the compiler recognises its
    /// errors about half-typed code and reports them once. A single expression has no braces, because
    /// `unused_braces` would warn.
    pub(crate) fn nested_body(&self) -> TokenStream {
        let inside = self.body.stream();
        match syn::parse2::<Expr>(inside.clone()) {
            Ok(_) => inside,
            Err(_) => self.body.to_token_stream(),
        }
    }

    /// The function with another body.
    pub(crate) fn with_body(&self, statements: &TokenStream) -> TokenStream {
        let inner_attrs = &self.inner_attrs;
        self.with_block(&in_braces_of(
            self.body.span(),
            quote!(#(#inner_attrs)* #statements),
        ))
    }

    /// The function as it was written, apart from changes of its signature and attributes.
    pub(crate) fn without_changes(&self) -> TokenStream {
        match self.inner_attrs.as_slice() {
            [] => self.with_block(&self.body),
            _ => self.with_body(&self.body.stream()),
        }
    }

    fn with_block(&self, block: &Group) -> TokenStream {
        let Self {
            attrs,
            vis,
            defaultness,
            sig,
            ..
        } = self;
        quote!(#(#attrs)* #vis #defaultness #sig #block)
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
            .retain(|argument| !argument.to_string().starts_with("__arg") && !names.contains(argument));
        self.arguments.extend_from_slice(names);
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Ident> {
        self.arguments.iter().find(|argument| argument.unraw() == name)
    }

    /// The argument that a name in an attribute means, at the place of that name. It has the argument's own
    /// hygiene, so that it is also found where a `macro_rules!` macro wrote the function.
    pub(crate) fn argument(&self, name: &Ident) -> Ident {
        let mut argument = self.find(&name.unraw().to_string()).unwrap_or(name).clone();
        argument.set_span(name.span().resolved_at(argument.span()));
        argument
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let receiver = self.receiver.map(|_| "self".to_owned());
        receiver
            .into_iter()
            .chain(self.arguments.iter().map(|argument| argument.unraw().to_string()))
            .collect()
    }

    /// The name of the argument at a position behind `self`, or of some argument, for hints.
    pub(crate) fn example(&self, position: usize) -> String {
        let argument = self.arguments.get(position).or(self.arguments.first());
        match argument {
            Some(argument) => argument.unraw().to_string(),
            None if self.receiver.is_some() => "self.id".into(),
            None => "order_id".into(),
        }
    }

    /// The message about a name that is no argument.
    pub(crate) fn unknown(&self, name: &str) -> String {
        let hint = match suggest::closest(name, self.names().iter().map(String::as_str)) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => ".".into(),
        };
        format!(
            "`{name}` is not an argument of this function{hint} {}",
            self.listed()
        )
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

#[cfg(test)]
mod tests;

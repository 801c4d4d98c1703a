//! Key templates: `"order:{order.id}"` becomes a format string and the expressions that fill it.
//!
//! A placeholder is an argument of the function, or a chain of its fields and its methods without arguments:
//! `{id}`, `{order.id}`, `{pair.0}`, `{self.tenant}`, `{order.region()}`. Each may have a format after a
//! colon. Whether a field exists and can be displayed is left to the compiler, which then points at the
//! template, because every generated token has its span.

#[cfg(test)]
mod tests;

use proc_macro2::Span;
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{Expr, Ident, LitStr, Member, parse_quote};

use crate::errors::Errors;
use crate::format;
use crate::function::Scope;
use crate::limits::MAX_KEY_BYTES;

/// A template in a form for `format_args!`.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) format: LitStr,
    pub(crate) values: Vec<Expr>,
}

/// The reason why a template was refused.
pub(crate) struct Refused {
    pub(crate) error: syn::Error,
    /// `format_args!` finds the same mistake first. It can point into the string, which a macro cannot do in
    /// stable Rust.
    pub(crate) compiler_points_inside: bool,
}

impl From<syn::Error> for Refused {
    fn from(error: syn::Error) -> Self {
        Self {
            error,
            compiler_points_inside: false,
        }
    }
}

/// Reads a template for a function with the arguments of `scope`.
pub(crate) fn parse(literal: &LitStr, scope: &Scope) -> Result<Template, Refused> {
    let text = literal.value();
    let mut reader = Reader {
        literal,
        scope,
        format: String::new(),
        values: Vec::new(),
        fixed: 0,
        plain: true,
        constants: false,
    };
    let mut errors = Errors::default();
    if text.is_empty() {
        errors.push(syn::Error::new(
            literal.span(),
            "the key is empty; name the resource, such as \"order:{order_id}\"",
        ));
    }
    if text.contains('\0') {
        errors.push(syn::Error::new(
            literal.span(),
            "the key contains a NUL byte, which databases cut off or refuse; leave it out",
        ));
    }
    // Up to here `format_args!` reads the template in the same way.
    let mut plain = true;
    let mut rest = text.as_str();
    while let Some(at) = rest.find(['{', '}']) {
        reader.text(&rest[..at]);
        let brace = &rest[at..];
        if brace.starts_with("{{") || brace.starts_with("}}") {
            reader.text(&brace[..1]);
            rest = &brace[2..];
            continue;
        }
        let Some(inside) = brace.strip_prefix('{') else {
            return Err(reader.unbalanced(
                errors,
                plain,
                "a `}` without a `{` in the key; write `}}` if the key contains a brace".into(),
            ));
        };
        let Some(end) = inside
            .find(['{', '}'])
            .filter(|end| inside[*end..].starts_with('}'))
        else {
            let open: String = brace.chars().take(24).collect();
            plain &= is_name(inside);
            return Err(reader.unbalanced(
                errors,
                plain,
                format!("`{open}` in the key is not closed; add the `}}`, or write `{{{{` if the key contains a brace"),
            ));
        };
        plain &= is_name(&inside[..end]);
        let result = reader.placeholder(&inside[..end]);
        errors.take(result);
        rest = &inside[end + 1..];
    }
    reader.text(rest);
    if reader.fixed > MAX_KEY_BYTES {
        errors.push(syn::Error::new(
            literal.span(),
            format!(
                "the fixed part of the key has {} bytes; a key has at most {MAX_KEY_BYTES}",
                reader.fixed
            ),
        ));
    }
    errors.finish()?;
    if reader.plain && reader.constants {
        return Ok(reader.as_written());
    }
    Ok(Template {
        format: LitStr::new(&reader.format, literal.span()),
        values: reader.values,
    })
}

fn is_name(text: &str) -> bool {
    Ident::parse_any.parse_str(text).is_ok()
}

struct Reader<'a> {
    literal: &'a LitStr,
    scope: &'a Scope,
    format: String,
    values: Vec<Expr>,
    /// Bytes of the key that are in the template itself.
    fixed: usize,
    /// Whether all placeholders are names by themselves.
    plain: bool,
    /// Whether one of these is a constant.
    constants: bool,
}

impl Reader<'_> {
    fn error(&self, message: impl std::fmt::Display) -> syn::Error {
        syn::Error::new(self.literal.span(), message)
    }

    fn not_a_placeholder(&self, inside: &str) -> syn::Error {
        self.error(format!(
            "`{{{inside}}}` is not a placeholder; it takes an argument, `.field`, `.0` and `.method()`. \
             For anything else write `key = format!(…)`"
        ))
    }

    fn unbalanced(&self, mut errors: Errors, plain: bool, message: String) -> Refused {
        let compiler_points_inside = plain && errors.is_empty();
        errors.push(self.error(message));
        let error = errors
            .finish()
            .err()
            .unwrap_or_else(|| self.error("the key cannot be read"));
        Refused {
            error,
            compiler_points_inside,
        }
    }

    /// The template with the arguments by their names. `format_args!` then finds the constants by itself, and the
    /// compiler points at a misspelt one inside the text.
    fn as_written(&self) -> Template {
        let mut values: Vec<Expr> = Vec::new();
        for value in &self.values {
            let named: Expr = parse_quote!(#value = #value);
            let name = value.to_token_stream().to_string();
            if self.scope.find(&name).is_some() && !values.contains(&named) {
                values.push(named);
            }
        }
        Template {
            format: self.literal.clone(),
            values,
        }
    }

    fn text(&mut self, text: &str) {
        self.fixed += text.len();
        self.format.push_str(&text.replace('{', "{{").replace('}', "}}"));
    }

    fn placeholder(&mut self, inside: &str) -> syn::Result<()> {
        let (path, format) = inside
            .split_once(':')
            .map_or((inside, None), |(path, format)| (path, Some(format)));
        let path = path.trim();
        if path.is_empty() {
            let name = self.scope.example(self.values.len());
            return Err(self.error(format!(
                "`{{{inside}}}` names no argument; write it with its name, such as `{{{name}}}`"
            )));
        }
        if format.is_some_and(|format| format.starts_with(':') && !format[1..].starts_with(['<', '^', '>'])) {
            return Err(self.not_a_placeholder(inside));
        }
        if let Ok(position) = path.parse::<usize>() {
            let name = self.scope.example(position);
            return Err(self.error(format!(
                "`{{{inside}}}` counts arguments; write it with its name, such as `{{{name}}}`"
            )));
        }
        if format.is_some_and(format::counts_arguments) {
            return Err(self.error(format!(
                "`{{{inside}}}` takes its width from another argument, which a key template cannot; \
                 write `key = format!(…)`"
            )));
        }
        if let Some(format) = format.filter(|format| !format::is_format(format)) {
            return Err(self.error(format!(
                "`{format}` in `{{{inside}}}` is not a format; `{{{path}:08}}` pads with zeros, `{{{path}:?}}` is Debug, \
                 `{{{path}:x}}` is hexadecimal"
            )));
        }
        let value = self.value(path)?;
        let plain = inside.starts_with(path) && is_identifier(path) && !path.contains('#');
        self.plain &= plain;
        self.constants |= plain && self.scope.find(path).is_none();
        self.format.push('{');
        if let Some(format) = format {
            self.format.push(':');
            self.format.push_str(format);
        }
        self.format.push('}');
        self.values.push(value);
        Ok(())
    }

    /// The expression that a placeholder stands for.
    fn value(&self, path: &str) -> syn::Result<Expr> {
        let refused = || self.not_a_placeholder(path);
        let mut value: Expr = LitStr::new(&raw(path), self.literal.span())
            .parse()
            .map_err(|_| refused())?;
        self.locate_members(&mut value);
        let root = root(&mut value).ok_or_else(refused)?;
        self.resolve(root)?;
        Ok(value)
    }

    /// Finds the argument that `name` means, and gives `name` the argument's hygiene, so that it is also
    /// found where a `macro_rules!` macro wrote the function.
    fn resolve(&self, name: &mut Ident) -> syn::Result<()> {
        let text = name.unraw().to_string();
        if text == "self" {
            let Some(receiver) = self.scope.receiver else {
                return Err(self.error(format!(
                    "the key uses `self`, but this function has none. {}",
                    self.scope.listed()
                )));
            };
            name.set_span(self.located(receiver));
            return Ok(());
        }
        if let Some(argument) = self.scope.find(&text) {
            let span = self.located(argument.span());
            *name = argument.clone();
            name.set_span(span);
            return Ok(());
        }
        // Constants and statics are in scope as well; the compiler knows whether they exist.
        if text.starts_with(char::is_uppercase) {
            name.set_span(self.located(Span::call_site()));
            return Ok(());
        }
        Err(self.error(self.scope.unknown(&text)))
    }

    /// A misspelt field is reported with its place alone. With the literal's own span the compiler would
    /// propose to write the right name instead of the whole template.
    fn locate_members(&self, value: &mut Expr) {
        let span = self.located(Span::call_site());
        match value {
            Expr::Field(field) => {
                if let Member::Named(name) = &mut field.member {
                    name.set_span(span);
                }
                self.locate_members(&mut field.base);
            }
            Expr::MethodCall(call) => {
                call.method.set_span(span);
                self.locate_members(&mut call.receiver);
            }
            _ => {}
        }
    }

    fn located(&self, hygiene: Span) -> Span {
        self.literal.span().resolved_at(hygiene)
    }
}

/// `{type}` stands for the argument `r#type`, `{order.type}` for its field.
fn raw(path: &str) -> String {
    let names = path.split('.').map(|part| {
        let (name, rest) = part.split_at(part.find('(').unwrap_or(part.len()));
        let raw = format!("r#{name}");
        let is_keyword = !is_identifier(name) && is_identifier(&raw);
        if is_keyword { raw + rest } else { part.to_owned() }
    });
    names.collect::<Vec<_>>().join(".")
}

fn is_identifier(text: &str) -> bool {
    syn::parse_str::<Ident>(text).is_ok()
}

/// The name that a chain of fields and methods starts from, if the expression is such a chain.
fn root(value: &mut Expr) -> Option<&mut Ident> {
    match value {
        Expr::Path(path) if path.qself.is_none() && path.path.get_ident().is_some() => {
            path.path.segments.first_mut().map(|segment| &mut segment.ident)
        }
        Expr::Field(field) if matches!(field.member, Member::Named(_) | Member::Unnamed(_)) => {
            root(&mut field.base)
        }
        Expr::MethodCall(call) if call.args.is_empty() && call.turbofish.is_none() => {
            root(&mut call.receiver)
        }
        _ => None,
    }
}

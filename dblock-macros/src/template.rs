//! Key templates: `"order:{order.id}"` becomes a format string and the expressions that fill it.
//!
//! A placeholder is an argument of the function, or a chain of its fields and its methods without arguments:
//! `{id}`, `{order.id}`, `{pair.0}`, `{self.tenant}`, `{order.region()}`. Each may have a format after a
//! colon. Whether a field exists and can be displayed is left to the compiler, which then points at the
//! template, because every generated token has its span.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{Expr, Ident, LitStr, Member};

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
        let mut value: Expr = LitStr::new(&self.raw(path), self.literal.span())
            .parse()
            .map_err(|_| refused())?;
        let root = root(&mut value).ok_or_else(refused)?;
        self.resolve(root)?;
        Ok(value)
    }

    /// `{type}` may stand for the argument `r#type`.
    fn raw(&self, path: &str) -> String {
        let root = path.split('.').next().unwrap_or(path);
        let is_raw = |argument: &Ident| argument.to_string().starts_with("r#");
        if self
            .scope
            .arguments
            .iter()
            .any(|argument| is_raw(argument) && argument.unraw() == root)
        {
            format!("r#{path}")
        } else {
            path.to_owned()
        }
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
            return Ok(());
        }
        Err(self.error(self.scope.unknown(&text)))
    }

    fn located(&self, hygiene: Span) -> Span {
        self.literal.span().resolved_at(hygiene)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use quote::ToTokens;

    fn scope() -> Scope {
        let sig: syn::Signature =
            syn::parse_quote!(async fn f(&self, order_id: u64, Path(user): Path<u64>, r#type: u8));
        Scope::new(&sig)
    }

    fn read(text: &str) -> Result<(String, Vec<String>), String> {
        let literal = LitStr::new(text, Span::call_site());
        match parse(&literal, &scope()) {
            Ok(template) => Ok((
                template.format.value(),
                template
                    .values
                    .iter()
                    .map(|value| value.to_token_stream().to_string().replace(' ', ""))
                    .collect(),
            )),
            Err(refused) => Err(refused
                .error
                .into_iter()
                .map(|error| error.to_string())
                .collect::<Vec<_>>()
                .join("\n")),
        }
    }

    #[test]
    fn placeholders_become_expressions() {
        for (text, format, values) in [
            ("fixed", "fixed", vec![]),
            ("o:{order_id}", "o:{}", vec!["order_id"]),
            (
                "{self.tenant}/{order_id:08}",
                "{}/{:08}",
                vec!["self.tenant", "order_id"],
            ),
            ("{self.a.0.1.b()}", "{}", vec!["self.a.0.1.b()"]),
            ("{user:?}", "{:?}", vec!["user"]),
            ("{type}{r#type}", "{}{}", vec!["r#type", "r#type"]),
            ("{{{order_id}}}", "{{{}}}", vec!["order_id"]),
            ("{REGION}", "{}", vec!["REGION"]),
            ("{user:*^+#08.3x?}", "{:*^+#08.3x?}", vec!["user"]),
            (
                "{user:é>5}{user:<}{user:x}",
                "{:é>5}{:<}{:x}",
                vec!["user", "user", "user"],
            ),
            ("клю́ч:{ order_id }", "клю́ч:{}", vec!["order_id"]),
        ] {
            let values = values.into_iter().map(String::from).collect();
            assert_eq!(read(text), Ok((format.to_owned(), values)), "{text}");
        }
    }

    #[test]
    fn mistakes_come_with_their_fix() {
        for (text, hint) in [
            ("", "the key is empty"),
            ("a\0b", "NUL"),
            ("{}", "write it with its name, such as `{order_id}`"),
            ("{order_id}:{}", "such as `{user}`"),
            ("{:?}", "names no argument"),
            ("{0}", "such as `{order_id}`"),
            (
                "{oder_id}",
                "did you mean `order_id`? The arguments are `self`, `order_id`, `user` and `type`",
            ),
            ("{order}", "did you mean `order_id`?"),
            ("{order_id", "not closed"),
            ("{order_id{", "not closed"),
            ("order_id}", "without a `{`"),
            ("{order_id + 1}", "is not a placeholder"),
            ("{order_id.max(1)}", "is not a placeholder"),
            ("{std::mem}", "is not a placeholder"),
            ("{order_id:.*}", "takes its width from another argument"),
            ("{order_id:w$}", "takes its width from another argument"),
            ("{order_id:zz}", "`zz` in `{order_id:zz}` is not a format"),
            ("{order_id:08n}", "is not a format"),
            (&"k".repeat(256), "has 256 bytes"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(hint), "{text}: {message}");
        }
    }

    #[test]
    fn all_mistakes_of_a_template_are_reported() {
        let message = read("{} {nobody} {order_id").unwrap_err();
        assert_eq!(message.lines().count(), 3, "{message}");
    }

    #[test]
    fn the_compiler_points_at_a_brace_only_where_it_reads_the_same() {
        for (text, points) in [
            ("a{order_id", true),
            ("{order_id} }", true),
            ("{self.a} }", false),
            ("{self.a", false),
        ] {
            let refused = parse(&LitStr::new(text, Span::call_site()), &scope()).unwrap_err();
            assert_eq!(refused.compiler_points_inside, points, "{text}");
        }
    }
}

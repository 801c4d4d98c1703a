//! Keys that look like a template and are a constant, because the text is not the whole value of `key`.

use proc_macro2::Span;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{BinOp, Block, Expr, Ident, Lit, Pat, Stmt, Token};

use crate::errors::Errors;
use crate::function::Scope;

/// Refuses `"order:{id}".to_string()` and the like, where nothing fills `{id}`.
pub(crate) fn refuse(value: &Expr, scope: &Scope, errors: &mut Errors) {
    let mut found = Vec::new();
    texts(value, &mut found);
    for Text {
        value,
        span,
        is_whole,
    } in found
    {
        let refused = |inside: &&str| is_whole || is_argument(inside, scope);
        if let Some(placeholder) = placeholder(&value, refused) {
            errors.push(syn::Error::new(
                span,
                format!(
                    "nothing fills `{placeholder}` here, so this key is the same for all calls; only a text by itself is a \
                     template: write `key = \"…{placeholder}…\"`, or `format!` around this text. A brace that is part of \
                     the key is written twice there"
                ),
            ));
        }
    }
}

/// A text that was found.
struct Text {
    value: String,
    span: Span,
    /// Whether nothing else is in the key. Otherwise braces may be meant, as in a hash tag of Redis.
    is_whole: bool,
}

impl Text {
    fn new(value: String, span: Span) -> Self {
        Self {
            value,
            span,
            is_whole: true,
        }
    }
}

fn is_argument(inside: &str, scope: &Scope) -> bool {
    let name = inside.split([':', '.']).next().unwrap_or_default().trim();
    scope.names().iter().any(|argument| argument == name)
}

/// The first `{…}` in a text that is refused.
fn placeholder(text: &str, refused: impl FnMut(&&str) -> bool) -> Option<String> {
    let text = text.replace("{{", "");
    let mut inside = text
        .split('{')
        .skip(1)
        .filter_map(|rest| Some(rest.split_once('}')?.0));
    inside.find(refused).map(|inside| format!("{{{inside}}}"))
}

/// Functions and methods that give the text that they are given, as another type.
const CONVERSIONS: &[&str] = &[
    "as_ref",
    "black_box",
    "borrow",
    "clone",
    "concat",
    "deref",
    "expect",
    "from",
    "from_str",
    "from_utf8",
    "from_utf8_lossy",
    "identity",
    "into",
    "join",
    "new",
    "to_owned",
    "to_string",
    "trim",
    "unwrap_or",
];

/// The texts that are the value, or a part of it, whatever happens. `text.replace("{id}", …)` has none.
fn texts(value: &Expr, found: &mut Vec<Text>) {
    match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => found.push(Text::new(text.value(), text.span())),
            Lit::ByteStr(text) => {
                let value = String::from_utf8_lossy(&text.value()).into_owned();
                found.push(Text::new(value, text.span()));
            }
            _ => {}
        },
        Expr::Paren(inner) => texts(&inner.expr, found),
        Expr::Group(inner) => texts(&inner.expr, found),
        Expr::Reference(inner) => texts(&inner.expr, found),
        Expr::Cast(inner) => texts(&inner.expr, found),
        Expr::Unary(inner) => texts(&inner.expr, found),
        Expr::Try(inner) => texts(&inner.expr, found),
        Expr::Index(inner) => texts(&inner.expr, found),
        Expr::Array(array) => joined(&array.elems.iter().collect::<Vec<_>>(), found),
        Expr::Binary(sum) if matches!(sum.op, BinOp::Add(_)) => {
            joined(&[&sum.left, &sum.right], found);
        }
        // Without arguments it can fill nothing.
        Expr::MethodCall(call) if call.args.is_empty() || converts(&call.method) => {
            texts(&call.receiver, found);
        }
        Expr::Call(call) if call.args.len() == 1 => match &*call.func {
            Expr::Path(path)
                if path
                    .path
                    .segments
                    .last()
                    .is_some_and(|name| converts(&name.ident)) =>
            {
                texts(&call.args[0], found);
            }
            _ => {}
        },
        Expr::Macro(call)
            if call
                .mac
                .path
                .segments
                .last()
                .is_some_and(|name| name.ident == "concat") =>
        {
            let parts = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(call.mac.tokens.clone());
            parts.iter().flatten().for_each(|part| texts(part, found));
        }
        Expr::Block(inner) => last(&inner.block, found),
        Expr::Const(inner) => last(&inner.block, found),
        Expr::Unsafe(inner) => last(&inner.block, found),
        Expr::If(branch) => {
            last(&branch.then_branch, found);
            if let Some((_, otherwise)) = &branch.else_branch {
                texts(otherwise, found);
            }
        }
        Expr::Match(branches) => branches.arms.iter().for_each(|arm| texts(&arm.body, found)),
        _ => {}
    }
}

/// The texts of a key of several parts.
fn joined(parts: &[&Expr], found: &mut Vec<Text>) {
    let first = found.len();
    let mut is_whole = true;
    for part in parts {
        let before = found.len();
        texts(part, found);
        is_whole &= found.len() > before;
    }
    for text in &mut found[first..] {
        text.is_whole &= is_whole;
    }
}

/// By its name. A name in upper case makes a variant or a struct, such as `Cow::Borrowed`.
fn converts(function: &Ident) -> bool {
    let name = function.to_string();
    CONVERSIONS.contains(&name.as_str()) || name.starts_with(char::is_uppercase)
}

/// The value of a block, which may be one of its variables.
fn last(block: &Block, found: &mut Vec<Text>) {
    let Some(Stmt::Expr(value, None)) = block.stmts.last() else {
        return;
    };
    texts(value, found);
    let Some(variable) = variable(value) else { return };
    let binding = block.stmts.iter().rev().find_map(|statement| match statement {
        Stmt::Local(local) => {
            let pat = match &local.pat {
                Pat::Type(typed) => &typed.pat,
                pat => pat,
            };
            matches!(pat, Pat::Ident(pat) if pat.ident == *variable && pat.mutability.is_none())
                .then_some(local.init.as_ref())?
        }
        _ => None,
    });
    if let Some(init) = binding {
        texts(&init.expr, found);
    }
}

/// The variable that an expression is, as another type.
fn variable(value: &Expr) -> Option<&Ident> {
    match value {
        Expr::Path(path) => path.path.get_ident(),
        Expr::Paren(inner) => variable(&inner.expr),
        Expr::Reference(inner) => variable(&inner.expr),
        Expr::Unary(inner) => variable(&inner.expr),
        Expr::MethodCall(call) if call.args.is_empty() => variable(&call.receiver),
        Expr::Call(call) if call.args.len() == 1 => match &*call.func {
            Expr::Path(path)
                if path
                    .path
                    .segments
                    .last()
                    .is_some_and(|name| converts(&name.ident)) =>
            {
                variable(&call.args[0])
            }
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proc_macro2::{Delimiter, Group};
    use quote::ToTokens;
    use syn::parse_quote;

    use super::*;

    fn messages(key: &str) -> usize {
        messages_of(&syn::parse_str(key).unwrap())
    }

    fn messages_of(key: &Expr) -> usize {
        let mut errors = Errors::default();
        let sig: syn::Signature = syn::parse_str("async fn f(&self, id: u64, order: &Order)").unwrap();
        refuse(key, &Scope::new(&sig), &mut errors);
        errors
            .finish()
            .err()
            .map_or(0, |errors| errors.into_iter().count())
    }

    #[test]
    fn a_text_that_nothing_fills_is_refused() {
        for key in [
            r#""a:{id}".to_string()"#,
            r#"&"a:{id:?}".to_owned()"#,
            r#"String::from("{order.id}")"#,
            r#"concat!("a:", "{self.name}")"#,
            r#""a:".to_owned() + "{id}""#,
            r#"{ "a:{id}" }"#,
            r#"match x { A => "a", _ => "b:{id}" }"#,
            r#"("a:{id}" as &str)"#,
            r#"&*"a:{id}""#,
            r#"&"a:{id}"[..]"#,
            r#"Cow::Borrowed("a:{id}")"#,
            r#"std::sync::Arc::new("a:{id}".to_owned())"#,
            r#"Some("a:{id}").unwrap_or("b")"#,
            r#"ToString::to_string(&"a:{id}")"#,
            r#"<str>::to_owned("a:{id}")"#,
            r#"std::concat!("a:", "{id}")"#,
            r#"str::from_utf8(b"a:{id}").unwrap()"#,
            r#"str::from_utf8(b"a:{id}")?"#,
            r#"["a", "{id}"].join(":")"#,
            r#"const { "a:{id}" }"#,
            r#"unsafe { "a:{id}" }"#,
            r#"{ let k: &str = "a:{id}"; k.to_owned() }"#,
            r#"{ let k = String::from("a:{id}"); String::from(&*k) }"#,
            r#"{ let k = "a:{id}"; (k) }"#,
            r#""a:{misspelt}".to_string()"#,
            r#"String::from("a:{id}") + &name"#,
            r#"["a:{misspelt}", "b"].concat()"#,
            r#""a:{}".to_string()"#,
            r#""a:{0}".to_string()"#,
        ] {
            assert_eq!(messages(key), 1, "{key}");
        }
        assert_eq!(messages(r#"if x { "a:{id}" } else { "b:{id}".into() }"#), 2);
    }

    #[test]
    fn a_fragment_of_a_macro_is_looked_into() {
        let text: Expr = syn::parse_str(r#""a:{id}".to_string()"#).unwrap();
        let fragment = Group::new(Delimiter::None, text.to_token_stream());
        assert_eq!(messages_of(&parse_quote!(#fragment)), 1);
    }

    #[test]
    fn a_text_that_something_fills_is_accepted() {
        for key in [
            r#"format!("a:{id}")"#,
            r#"key_of!("a:{id}")"#,
            r#"TEMPLATE.replace("{id}", &id.to_string())"#,
            r#""a:{id}".replace("{id}", &id.to_string())"#,
            r#"render("a:{id}")"#,
            r#"Path::new("a:{id}", id)"#,
            r#"root / "{id}""#,
            r#""a:{{id}}".to_string()"#,
            r#"{ let k = "a:{id}"; k.replace("{id}", &id.to_string()) }"#,
            r#"{ let k = "a:{id}"; Path::new(k, id) }"#,
            r#"{ let k = "a:{id}"; render(k) }"#,
            r#"{ let mut k = String::from("a:{id}"); fill(&mut k); k }"#,
            r#"templates.get("a:{id}")"#,
            r#"table["a:{id}"]"#,
            r#"String::from("{orders}:") + &name"#,
            r#"["{orders}", name].join(":")"#,
        ] {
            assert_eq!(messages(key), 0, "{key}");
        }
    }
}

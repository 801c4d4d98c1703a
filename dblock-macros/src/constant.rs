//! Keys that look like a template and are a constant, because the text is not the whole value of `key`.

use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{BinOp, Block, Expr, Lit, LitStr, Stmt, Token};

use crate::errors::Errors;
use crate::function::Scope;

/// Refuses `"order:{id}".to_string()` and the like, where nothing fills `{id}`.
pub(crate) fn refuse(value: &Expr, scope: &Scope, errors: &mut Errors) {
    let mut found = Vec::new();
    texts(value, &mut found);
    for text in found {
        if let Some(placeholder) = placeholder(&text.value(), scope) {
            errors.push(syn::Error::new(
                text.span(),
                format!(
                    "nothing fills `{placeholder}` here, so this key is the same for all calls; only a text by itself is a \
                     template: write `key = \"…{placeholder}…\"`, or `format!` around this text"
                ),
            ));
        }
    }
}

/// The first `{argument…}` in a text.
fn placeholder(text: &str, scope: &Scope) -> Option<String> {
    let text = text.replace("{{", "");
    let mut inside = text
        .split('{')
        .skip(1)
        .filter_map(|rest| Some(rest.split_once('}')?.0));
    let is_argument = |inside: &&str| {
        let name = inside.split([':', '.']).next().unwrap_or_default().trim();
        scope.names().iter().any(|argument| argument == name)
    };
    inside.find(is_argument).map(|inside| format!("{{{inside}}}"))
}

/// The texts that are the value, or a part of it, whatever happens. `text.replace("{id}", …)` has none.
fn texts(value: &Expr, found: &mut Vec<LitStr>) {
    match value {
        Expr::Lit(literal) => {
            if let Lit::Str(text) = &literal.lit {
                found.push(text.clone());
            }
        }
        Expr::Paren(inner) => texts(&inner.expr, found),
        Expr::Group(inner) => texts(&inner.expr, found),
        Expr::Reference(inner) => texts(&inner.expr, found),
        Expr::Binary(sum) if matches!(sum.op, BinOp::Add(_)) => {
            texts(&sum.left, found);
            texts(&sum.right, found);
        }
        Expr::MethodCall(call) if call.args.is_empty() => texts(&call.receiver, found),
        Expr::Call(call) if call.args.len() == 1 => match &*call.func {
            Expr::Path(path) if path.path.segments.last().is_some_and(|name| name.ident == "from") => {
                texts(&call.args[0], found);
            }
            _ => {}
        },
        Expr::Macro(call) if call.mac.path.is_ident("concat") => {
            let parts = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(call.mac.tokens.clone());
            parts.iter().flatten().for_each(|part| texts(part, found));
        }
        Expr::Block(inner) => last(&inner.block, found),
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

fn last(block: &Block, found: &mut Vec<LitStr>) {
    if let Some(Stmt::Expr(value, None)) = block.stmts.last() {
        texts(value, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(key: &str) -> usize {
        let sig: syn::Signature = syn::parse_str("async fn f(&self, id: u64, order: &Order)").unwrap();
        let mut errors = Errors::default();
        refuse(&syn::parse_str(key).unwrap(), &Scope::new(&sig), &mut errors);
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
        ] {
            assert_eq!(messages(key), 1, "{key}");
        }
        assert_eq!(messages(r#"if x { "a:{id}" } else { "b:{id}".into() }"#), 2);
    }

    #[test]
    fn a_text_that_something_fills_is_accepted() {
        for key in [
            r#"format!("a:{id}")"#,
            r#"key_of!("a:{id}")"#,
            r#"TEMPLATE.replace("{id}", &id.to_string())"#,
            r#""a:{id}".replace("{id}", &id.to_string())"#,
            r#"render("a:{id}")"#,
            r#""a:{other}".to_string()"#,
            r#""a:{{id}}".to_string()"#,
        ] {
            assert_eq!(messages(key), 0, "{key}");
        }
    }
}

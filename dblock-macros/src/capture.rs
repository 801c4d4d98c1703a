//! The arguments that the body moves into the future under the lock, and their order.
//!
//! An async block captures the names that it uses, in the order of their first use; from a struct it captures
//! only the used fields. It drops its captures in that order. A function drops its arguments whole, from the
//! last to the first. So the block first names the arguments that the body uses, whole and from the last to
//! the first, in code that never runs.
//!
//! An argument that the body does not use is not named, because that would silence `unused_variables`.

use proc_macro2::{Spacing, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::{FnArg, Ident, Signature};

use crate::function::Scope;

/// The arguments that the body uses, from the last to the first.
pub(crate) fn used(sig: &Signature, scope: &Scope, body: &TokenStream) -> Vec<Ident> {
    // Whether such an argument exists is not known yet.
    let conditional = |input: &FnArg| {
        let attrs = match input {
            FnArg::Receiver(receiver) => &receiver.attrs,
            FnArg::Typed(argument) => &argument.attrs,
        };
        attrs
            .iter()
            .any(|attr| attr.path().is_ident("cfg") || attr.path().is_ident("cfg_attr"))
    };
    if sig.inputs.iter().any(conditional) {
        return Vec::new();
    }
    let receiver = scope.receiver.map(|span| Ident::new("self", span));
    let mut used: Vec<Ident> = receiver
        .into_iter()
        .chain(scope.arguments.iter().cloned())
        .filter(|argument| first_mention(body, &argument.unraw().to_string()) == Some(Mention::Use))
        .collect();
    used.reverse();
    used
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mention {
    Use,
    /// A pattern that binds the name anew.
    Binding,
}

/// How `name` is first mentioned. Tokens are enough for this, so half-typed bodies are fine. An unclear
/// mention counts as a binding, and then the block captures the argument where it uses it.
fn first_mention(tokens: &TokenStream, name: &str) -> Option<Mention> {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let mention = match token {
            TokenTree::Ident(ident) if ident.unraw() == name => mention(&tokens[..at], &tokens[at + 1..]),
            TokenTree::Group(group) => first_mention(&group.stream(), name),
            TokenTree::Literal(literal) => {
                in_format_string(&literal.to_string(), name).then_some(Mention::Use)
            }
            _ => None,
        };
        if mention.is_some() {
            return mention;
        }
    }
    None
}

/// How these tokens mention the name between them; `None` if it is a field, a label or a lifetime.
fn mention(before: &[TokenTree], after: &[TokenTree]) -> Option<Mention> {
    let is = |token: Option<&TokenTree>, text: &str| token.is_some_and(|token| token.to_string() == text);
    let previous = |back: usize| before.len().checked_sub(back).map(|at| &before[at]);
    let field = is(previous(1), ".") && !is(previous(2), ".");
    let named = match after {
        [TokenTree::Punct(next), ..] => next.as_char() == ':' && next.spacing() == Spacing::Alone,
        _ => false,
    };
    if field || named || is(previous(1), "'") {
        return None;
    }
    let binding = ["let", "mut", "ref", "|", "for", "fn"]
        .into_iter()
        .any(|word| is(previous(1), word));
    if (binding && !is(previous(2), "&")) || is_rebound(after) {
        return Some(Mention::Binding);
    }
    Some(Mention::Use)
}

/// `name @`, `name =>`, `name = value` and `name += value`. The last two, because a lint warns about an
/// argument that is only assigned, and another mention would confuse the lint.
fn is_rebound(after: &[TokenTree]) -> bool {
    let mut operator = String::new();
    for token in after {
        let TokenTree::Punct(punct) = token else { break };
        operator.push(punct.as_char());
        if punct.spacing() == Spacing::Alone {
            break;
        }
    }
    matches!(
        operator.as_str(),
        "@" | "=>" | "=" | "+=" | "-=" | "*=" | "/=" | "%=" | "&=" | "|=" | "^=" | "<<=" | ">>="
    )
}

/// `"{name}"` or `"{name:?}"` in what may be a format string.
fn in_format_string(literal: &str, name: &str) -> bool {
    literal.starts_with(['"', 'r'])
        && literal.match_indices(&format!("{{{name}")).any(|(at, found)| {
            literal[at + found.len()..].starts_with(['}', ':']) && !literal[..at].ends_with('{')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(body: &str) -> Vec<String> {
        let sig: Signature = syn::parse_str("async fn f(&self, a: A, (b, c): (B, C), r#type: u8)").unwrap();
        let body: TokenStream = body.parse().unwrap();
        used(&sig, &Scope::new(&sig), &body)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn used_arguments_come_from_the_last_to_the_first() {
        assert_eq!(names("self.go(a); c + b"), ["c", "b", "a", "self"]);
        assert_eq!(names("r#type"), ["r#type"]);
        assert_eq!(names("if x { loop { a } }"), ["a"]);
        assert_eq!(names("0..a"), ["a"]);
        assert_eq!(names("Point { a: 1, b }"), ["b"]);
        assert_eq!(names("g(&mut a, b as u8)"), ["b", "a"]);
        assert_eq!(names(r#"println!("{a} {b:?} {{c}}")"#), ["b", "a"]);
    }

    #[test]
    fn unused_and_shadowed_arguments_are_left_alone() {
        assert!(names("").is_empty());
        assert!(names("x.a; y.b()").is_empty());
        assert!(names("let a = 1; a + 1").is_empty());
        assert!(names("v.map(|a| a + 1)").is_empty());
        assert!(names("for a in v {}").is_empty());
        assert!(names("match v { a => a, b @ 1 => b }").is_empty());
        assert!(names("a = A; b += 1").is_empty());
        assert_eq!(names("a == A"), ["a"]);
    }

    #[test]
    fn conditional_arguments_are_left_alone() {
        let sig: Signature = syn::parse_str("async fn f(#[cfg(unix)] a: A, b: B)").unwrap();
        assert!(used(&sig, &Scope::new(&sig), &"a; b".parse().unwrap()).is_empty());
    }
}

//! For any input, the attribute answers with code or with an error, and never panics.

use std::str::FromStr;

use proc_macro2::{Span, TokenStream};
use proptest::prelude::*;
use quote::ToTokens;

use crate::function::Scope;
use crate::kind::Kind;
use crate::{capture, duration, expand, template};

/// Fragments of attributes and functions, in any order.
fn scraps(of: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(of), 0..most).prop_map(|scraps| scraps.join(" "))
}

const ARGUMENTS: &[&str] = &[
    "key",
    "ttl",
    "wait",
    "manager",
    "renew",
    "on_lost",
    "on_busy",
    "on_error",
    "crate",
    "keys",
    "times",
    "backoff",
    "within",
    "\"10ms..2s\"",
    "r#type",
    "=",
    "==",
    ",",
    ",",
    ":",
    "::",
    ";",
    "\"30s\"",
    "\"a:{id}\"",
    "\"{\"",
    "\"}\"",
    "\"{id:>$}\"",
    "\"forever\"",
    "\"signal\"",
    "1",
    "1.5",
    "true",
    "b\"x\"",
    "'a'",
    "|e|",
    "Ok(())",
    "(a, b)",
    "[1]",
    "{ }",
    "self",
    ".",
    "&",
    "<",
    ">",
    "#",
    "?",
    "'a",
    "async",
    "move",
    "..",
    "-",
];

const ITEMS: &[&str] = &[
    "pub",
    "(crate)",
    "async",
    "const",
    "unsafe",
    "extern \"C\"",
    "default",
    "fn",
    "f",
    "(id: u64)",
    "(&self)",
    "(self: Arc<Self>, (a, [b, ..]): P, Q { c, .. }: Q)",
    "()",
    "<T>",
    "-> Result<(), E>",
    "->",
    "impl Trait",
    "-> Pin<Box<dyn Future<Output = u8>>>",
    "{ Ok(()) }",
    "{ Box::pin(async move { 1 }) }",
    "{ let x = order. }",
    "{ #![allow(x)] id }",
    "where T: Send",
    ";",
    "struct",
    "mod",
    "impl",
    "enum",
    "#[distributed_lock]",
    "#[distributed_lock(key = \"b\")]",
    "#[distributed_lock = 1]",
    "#[optimistic_retry]",
    "#[optimistic_retry(times = 0)]",
    "(ref tx: &mut Transaction<'_, Db>)",
    "#[x]",
    "#",
    "!",
    "let",
    "macro_rules! m",
];

/// Also tries every prefix of the input, as an editor does while somebody types.
fn check(args: &str, item: &str) {
    let (Ok(args), Ok(item)) = (TokenStream::from_str(args), TokenStream::from_str(item)) else {
        return;
    };
    let tokens: Vec<_> = args.into_iter().collect();
    for end in 0..=tokens.len() {
        let args: TokenStream = tokens[..end].iter().cloned().collect();
        for kind in [Kind::Lock, Kind::Once, Kind::Retry] {
            assert!(item.is_empty() || !expand::attribute(kind, args.clone(), item.clone()).is_empty());
        }
    }
}

proptest! {
    #[test]
    fn arguments(args in scraps(ARGUMENTS, 16)) {
        check(&args, "async fn settle(&self, id: u64) -> Result<(), E> { Ok(id) }");
    }

    #[test]
    fn items(item in scraps(ITEMS, 10)) {
        check("key = \"{id}\", ttl = \"5s\"", &item);
    }

    #[test]
    fn both(args in scraps(ARGUMENTS, 8), item in scraps(ITEMS, 8)) {
        check(&args, &item);
    }

    #[test]
    fn text(args in "\\PC{0,40}", item in "\\PC{0,40}") {
        check(&args, &item);
    }

    /// When a template is accepted, `format!` accepts it too, with as many placeholders as values.
    #[test]
    fn templates(text in r"([{}:.?$*<0-9 ]|id|self|type|name\(\)|é|\PC){0,12}") {
        let sig: syn::Signature = syn::parse_str("async fn f(&self, id: u64, r#type: u8)").unwrap();
        let scope = Scope::new(&sig);
        let literal = syn::LitStr::new(&text, Span::call_site());
        if let Ok(template) = template::parse(&literal, &scope) {
            let format = template.format.value().replace("{{", "").replace("}}", "");
            // With a constant it stays as it was.
            let as_written = template.format.value() == text;
            prop_assert!(
                as_written || format.matches('{').count() == template.values.len(),
                "{}",
                template.format.value()
            );
            for value in &template.values {
                prop_assert!(syn::parse2::<syn::Expr>(value.to_token_stream()).is_ok());
            }
        }
    }

    #[test]
    fn durations(text in r"([0-9]{1,25}|[ .,-]|ms|s|m|h|d|M|\PC){0,6}") {
        if let Ok(duration) = duration::parse("ttl", &text) {
            prop_assert!((duration::MIN_TTL..=duration::MAX).contains(&duration));
        }
    }

    #[test]
    fn bodies(body in scraps(&["id", "type", ".", ":", "let", "mut", "=", "+=", "&", "|", "{ id }", "'id", "\"{id}\"", "r#type"], 12)) {
        let sig: syn::Signature = syn::parse_str("async fn f(&self, id: u64, r#type: u8)").unwrap();
        if let Ok(body) = TokenStream::from_str(&body) {
            prop_assert!(capture::used(&sig, &Scope::new(&sig), &body).len() <= 2);
        }
    }
}

//! What the attributes say about the files of `tests/ui/fail`. The compiler prints it there, which takes minutes.

use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::parse::Parser;
use syn::{Attribute, Meta, parse_quote};

use crate::expand;
use crate::kind::Kind;

/// Files where the compiler has found something by itself, or where another macro stands above the attribute.
const LEFT_OUT: &[&str] = &[
    "body_half_typed",
    "body_not_send",
    "body_warnings",
    "fn_made_synchronous",
    "guard_not_bound",
    "keys_unclosed",
    "main_below_tokio",
    "retry_made_synchronous",
    "stacked_under_another_name",
    "template_unclosed",
    "template_unopened",
];

#[test]
fn the_attributes_say_what_the_compiler_prints() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/ui/fail");
    let mut messages = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if path.extension().is_none_or(|extension| extension != "rs") || LEFT_OUT.contains(&name) {
            continue;
        }
        let code = fs::read_to_string(&path).unwrap();
        let mut said = Vec::new();
        read(code.parse().unwrap(), &mut said);
        said.sort();
        let output = fs::read_to_string(path.with_extension("stderr")).unwrap();
        let output = format!("\n{output}");
        let mut printed: Vec<_> = output.split("\nerror: ").skip(1).map(shown).collect();
        printed.sort();
        assert_eq!(said, printed, "{name}");
        messages += said.len();
    }
    assert!(messages > 100, "only {messages} messages were found");
}

/// A message, and the line and the column that it shows.
type Message = (String, String);

/// The beginning of an error that the compiler has printed.
fn shown(error: &str) -> Message {
    let (message, rest) = error.split_once('\n').unwrap();
    let place = rest.lines().next().unwrap().split_once(".rs:").unwrap().1;
    (message.to_owned(), place.to_owned())
}

/// Finds items under our attributes, also in blocks, and the messages about each.
fn read(tokens: TokenStream, messages: &mut Vec<Message>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if let Some((kind, args)) = attribute(&tokens[at..]) {
            let item = &tokens[at + 2..];
            let end = item.iter().position(ends).map_or(item.len(), |end| end + 1);
            let expanded = expand::expand(kind, args, item[..end].iter().cloned().collect());
            messages.extend(expanded.err().into_iter().flatten().map(|error| {
                let span = Some(error.span()).filter(|span| !span.byte_range().is_empty());
                // Without one it is about the whole attribute.
                let start = span.unwrap_or(token.span()).start();
                (error.to_string(), format!("{}:{}", start.line, start.column + 1))
            }));
            at += 2 + end;
            continue;
        }
        if let TokenTree::Group(group) = token {
            read(group.stream(), messages);
        }
        at += 1;
    }
}

/// The attribute at the start, if it is one of ours.
fn attribute(tokens: &[TokenTree]) -> Option<(Kind, TokenStream)> {
    let attribute: TokenStream = tokens.get(..2)?.iter().cloned().collect();
    let attribute = Attribute::parse_outer.parse2(attribute).ok()?.pop()?;
    let kind = Kind::of(&attribute, &parse_quote!(::dblock))?;
    match attribute.meta {
        Meta::List(list) => Some((kind, list.tokens)),
        _ => Some((kind, TokenStream::new())),
    }
}

fn ends(token: &TokenTree) -> bool {
    match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    }
}

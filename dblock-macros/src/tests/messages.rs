//! What the attributes say about the files of `tests/ui/fail`. The compiler prints it there, which takes minutes.

use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::parse::Parser;
use syn::{Attribute, Meta, parse_quote};

use crate::expand;
use crate::kind::Kind;

/// Files where the compiler has found something by itself, or where another macro stands above the attribute, or where the
/// attribute looks at the text of the file.
const LEFT_OUT: &[&str] = &[
    "body_half_typed",
    "body_not_send",
    "body_warnings",
    "fn_blocks_itself",
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
        let printed = output.lines().filter_map(|line| line.strip_prefix("error: "));
        let mut printed: Vec<_> = printed.collect();
        printed.sort_unstable();
        assert_eq!(said, printed, "{name}");
        messages += said.len();
    }
    assert!(messages > 100, "only {messages} messages were found");
}

/// Finds items under our attributes, also in blocks, and the messages about each.
fn read(tokens: TokenStream, messages: &mut Vec<String>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if let Some((kind, args)) = attribute(&tokens[at..]) {
            let item = &tokens[at + 2..];
            let end = item.iter().position(ends).map_or(item.len(), |end| end + 1);
            let expanded = expand::expand(kind, args, item[..end].iter().cloned().collect());
            messages.extend(
                expanded
                    .err()
                    .into_iter()
                    .flatten()
                    .map(|error| error.to_string()),
            );
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

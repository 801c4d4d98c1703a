//! Splits the text between an attribute's parentheses into `name = value` pairs, and tells what is wrong with
//! the rest.

use proc_macro2::TokenStream;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Ident, Lit, LitStr, Token, parse_quote};

use crate::errors::Errors;
use crate::{suggest, values};

/// The arguments that an attribute accepts, for its messages.
pub(crate) struct Arguments {
    /// The name of each argument and an example of it, in the order of the reference. The example of a flag is
    /// its name alone: it takes no value.
    pub(crate) examples: &'static [(&'static str, &'static str)],
    /// Names that other libraries use, each with ours.
    pub(crate) elsewhere: &'static [(&'static str, &'static str)],
    /// Arguments that another attribute has, each with the reason why this one refuses it.
    pub(crate) refused: &'static [(&'static str, &'static str)],
    /// The argument that a text without a name was probably meant for.
    pub(crate) of_bare_text: &'static str,
    /// An example for what is no argument at all.
    pub(crate) such_as: &'static str,
}

/// One `name = value`, or a flag.
pub(crate) struct Pair {
    pub(crate) name: Ident,
    /// Of a flag its name.
    pub(crate) value: Expr,
}

/// An argument as far as it could be read.
pub(crate) enum Entry {
    Pair(Pair),
    /// Not readable, and already reported. With its name, if it has one.
    Broken(Option<Ident>),
}

impl Arguments {
    /// Splits the arguments. After a mistake it continues after the next comma.
    pub(crate) fn read(&self, tokens: TokenStream, errors: &mut Errors) -> Vec<Entry> {
        let parser = |input: ParseStream<'_>| {
            let mut entries = Vec::new();
            while !input.is_empty() {
                let ahead = input.fork();
                let name = if input.peek(Ident::peek_any) {
                    Some(input.fork().call(Ident::parse_any)?)
                } else {
                    None
                };
                match self.pair(input) {
                    Ok(pair) => entries.push(Entry::Pair(pair)),
                    Err(error) => {
                        let known = name.as_ref().is_some_and(|name| self.example(name).is_some());
                        let value = ahead.parse().ok().filter(|_| !known);
                        let positional = value.and_then(|value| positional(&mut entries, &value));
                        errors.push(positional.unwrap_or(error));
                        entries.push(Entry::Broken(name));
                        skip(input)?;
                    }
                }
                if !input.is_empty() && input.parse::<Option<Token![,]>>()?.is_none() {
                    errors.push(input.error("expected `,` between two arguments"));
                    skip(input)?;
                    input.parse::<Option<Token![,]>>()?;
                }
            }
            Ok(entries)
        };
        // The parser above turns every mistake into an entry, so this cannot fail.
        let result = parser.parse2(tokens);
        errors.take(result).unwrap_or_default()
    }

    fn pair(&self, input: ParseStream<'_>) -> syn::Result<Pair> {
        if let Some(text) = input.fork().parse::<Option<LitStr>>()? {
            let name = self.of_bare_text;
            return Err(syn::Error::new(
                text.span(),
                format!("write `{name} = \"{}\"`; every argument has a name", text.value()),
            ));
        }
        let name = input.call(Ident::parse_any).map_err(|error| {
            let message = format!("expected an argument, such as `{}`", self.such_as);
            syn::Error::new(error.span(), message)
        })?;
        let has_value = input.peek(Token![=]) && !input.peek(Token![==]);
        if self.is_flag(&name) {
            if !has_value && (input.is_empty() || input.peek(Token![,])) {
                let value = parse_quote!(#name);
                return Ok(Pair { name, value });
            }
            return Err(syn::Error::new(
                name.span(),
                format!("`{name}` takes no value: write `{name}` alone, or leave it out"),
            ));
        }
        if has_value {
            input.parse::<Token![=]>()?;
        } else {
            return Err(match self.example(&name) {
                Some(example) => {
                    syn::Error::new(name.span(), format!("`{name}` takes a value: write `{example}`"))
                }
                None => self.unknown(&name),
            });
        }
        if input.is_empty() || input.peek(Token![,]) {
            let example = self.example(&name).unwrap_or("name = value");
            return Err(syn::Error::new(
                name.span(),
                format!("the value is missing: write `{example}`"),
            ));
        }
        Ok(Pair {
            name,
            value: ungrouped(input.parse()?),
        })
    }

    fn is_flag(&self, name: &Ident) -> bool {
        self.example(name).is_some_and(|example| name == example)
    }

    fn example(&self, name: &Ident) -> Option<&'static str> {
        let found = self.examples.iter().find(|(known, _)| name == known);
        found.map(|(_, example)| *example)
    }

    /// The argument that `text` was probably meant to be.
    pub(crate) fn meant(&self, text: &str) -> Option<&'static str> {
        let elsewhere = self.elsewhere.iter().find(|(theirs, _)| *theirs == text);
        elsewhere
            .map(|(_, ours)| *ours)
            .or_else(|| suggest::closest(text, self.names()))
    }

    /// Whether an argument is among them, perhaps misspelt or unreadable: then it is not reported as missing
    /// too.
    pub(crate) fn has(&self, argument: &str, entries: &[Entry]) -> bool {
        let is_it = |name: &Ident| self.meant(&name.unraw().to_string()) == Some(argument);
        entries.iter().any(|entry| match entry {
            Entry::Pair(pair) => is_it(&pair.name),
            Entry::Broken(name) => name.as_ref().is_none_or(is_it),
        })
    }

    /// The error for an argument that does not exist.
    pub(crate) fn unknown(&self, name: &Ident) -> syn::Error {
        let text = name.unraw().to_string();
        if let Some((_, reason)) = self.refused.iter().find(|(refused, _)| *refused == text) {
            return syn::Error::new(name.span(), reason);
        }
        let hint = if let Some(near) = self.meant(&text) {
            format!("did you mean `{near}`?")
        } else {
            let names: Vec<_> = self.names().collect();
            format!("expected {}", suggest::list(&names, "or"))
        };
        syn::Error::new(name.span(), format!("unknown argument `{text}`; {hint}"))
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.examples.iter().map(|(name, _)| *name)
    }
}

/// For `key = "a:{}", id`, as one would write it for `format!`: one error instead of one for each half.
fn positional(entries: &mut [Entry], value: &Expr) -> Option<syn::Error> {
    let template = entries.last_mut()?;
    let Entry::Pair(Pair { name, value: before }) = template else {
        return None;
    };
    let Some(Lit::Str(text)) = values::literal(before).filter(|_| *name == "key") else {
        return None;
    };
    let text = text.value();
    let empty = [text.find("{}"), text.find("{:")].into_iter().flatten().min()?;
    let (before, behind) = text.split_at(empty + 1);
    let name_of_value = quote::quote!(#value).to_string().replace([' ', '&'], "");
    let filled = format!("{before}{name_of_value}{behind}");
    let message = format!("a template has its values inside: write `key = \"{filled}\"`");
    *template = Entry::Broken(Some(name.clone()));
    Some(syn::Error::new_spanned(value, message))
}

/// A fragment of a `macro_rules!` macro arrives in an invisible group.
pub(crate) fn ungrouped(value: Expr) -> Expr {
    match value {
        Expr::Group(group) => ungrouped(*group.expr),
        value => value,
    }
}

/// Skips to the next comma that an argument seems to follow, or to the end.
fn skip(input: ParseStream<'_>) -> syn::Result<()> {
    while !input.is_empty() {
        if input.peek(Token![,])
            && (input.peek2(Ident::peek_any) && input.peek3(Token![=]) || input.peek2(syn::parse::End))
        {
            break;
        }
        input.parse::<proc_macro2::TokenTree>()?;
    }
    Ok(())
}

/// The pairs without those whose name was given before, which are mistakes.
pub(crate) fn first_of_each(entries: Vec<Entry>, errors: &mut Errors) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    for entry in entries {
        let Entry::Pair(pair) = entry else { continue };
        match pairs.iter().find(|other| other.name == pair.name) {
            Some(first) => errors.push(duplicate(first, &pair)),
            None => pairs.push(pair),
        }
    }
    pairs
}

fn duplicate(first: &Pair, second: &Pair) -> syn::Error {
    let name = &second.name;
    let value = &first.value;
    let given = quote::quote!(#value).to_string();
    let message = if name == &given {
        format!("`{name}` is given twice; write it once")
    } else {
        format!("`{name}` is given twice; the first is `{name} = {given}`")
    };
    syn::Error::new(name.span(), message)
}

//! Reads the arguments of the attribute. It does not look at the function.

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Ident, LitStr, Path, Token, parse_quote};

use crate::errors::Errors;
use crate::values::{Key, Length, OnLost, Wait};
use crate::{suggest, values};

/// The names of all arguments, in the order of the reference.
const NAMES: [&str; 11] = [
    "key", "ttl", "wait", "manager", "renew", "max_hold", "hold_min", "on_lost", "on_busy", "on_error",
    "crate",
];

/// The arguments of one attribute.
pub(crate) struct Args {
    /// `None` only when it is missing, which is a mistake.
    pub(crate) key: Option<Key>,
    pub(crate) ttl: Option<Length>,
    pub(crate) wait: Option<Wait>,
    pub(crate) manager: Option<Expr>,
    pub(crate) renew: Option<Expr>,
    pub(crate) max_hold: Option<Length>,
    pub(crate) hold_min: Option<Length>,
    pub(crate) on_lost: Option<OnLost>,
    pub(crate) on_busy: Option<Expr>,
    pub(crate) on_error: Option<Expr>,
    pub(crate) krate: Path,
}

/// One `name = value`.
struct Pair {
    name: Ident,
    value: Expr,
}

impl Args {
    /// Reads the text between the parentheses of the attribute. A missing argument is reported at
    /// `attribute`.
    pub(crate) fn parse(tokens: TokenStream, attribute: Span, errors: &mut Errors) -> Self {
        let mut args = Self {
            key: None,
            ttl: None,
            wait: None,
            manager: None,
            renew: None,
            max_hold: None,
            hold_min: None,
            on_lost: None,
            on_busy: None,
            on_error: None,
            krate: parse_quote!(::dblock),
        };
        let mut seen: Vec<Pair> = Vec::new();
        let mut key_seen = false;
        for pair in pairs(tokens, errors) {
            match pair {
                Entry::Pair(pair) => {
                    key_seen |= is_key(&pair.name);
                    if let Some(first) = seen.iter().find(|other| other.name == pair.name) {
                        errors.push(duplicate(first, &pair));
                        continue;
                    }
                    let result = args.set(&pair);
                    errors.take(result);
                    seen.push(pair);
                }
                Entry::Broken(name) => key_seen |= name.is_none_or(|name| is_key(&name)),
            }
        }
        if !key_seen {
            errors.push(syn::Error::new(
                attribute,
                "`key` is missing; name the resource to lock, such as `key = \"order:{order_id}\"`",
            ));
        }
        args
    }

    fn set(&mut self, Pair { name, value }: &Pair) -> syn::Result<()> {
        match name.unraw().to_string().as_str() {
            "key" => self.key = Some(values::key(value)?),
            "ttl" => self.ttl = Some(values::length("ttl", value)?),
            "wait" => self.wait = Some(values::wait(value)?),
            "manager" => {
                self.manager = Some(values::no_literal(
                    value,
                    "a `LockManager`, such as `manager = self.locks`",
                )?);
            }
            "renew" => self.renew = Some(values::renew(value)?),
            "max_hold" => self.max_hold = Some(values::length("max_hold", value)?),
            "hold_min" => self.hold_min = Some(values::length("hold_min", value)?),
            "on_lost" => self.on_lost = Some(values::on_lost(value)?),
            "on_busy" => self.on_busy = Some(value.clone()),
            "on_error" => {
                self.on_error = Some(values::no_literal(
                    value,
                    "a closure, such as `on_error = |error| Err(error.into())`",
                )?);
            }
            "crate" => self.krate = values::krate(value)?,
            other => return Err(unknown(name, other)),
        }
        Ok(())
    }
}

/// An argument as far as it could be read.
enum Entry {
    Pair(Pair),
    /// Not readable, and already reported. With its name, if it has one.
    Broken(Option<Ident>),
}

/// Splits the arguments. After a mistake it continues after the next comma.
fn pairs(tokens: TokenStream, errors: &mut Errors) -> Vec<Entry> {
    let parser = |input: ParseStream<'_>| {
        let mut entries = Vec::new();
        while !input.is_empty() {
            let name = if input.peek(Ident::peek_any) {
                Some(input.fork().call(Ident::parse_any)?)
            } else {
                None
            };
            match pair(input) {
                Ok(pair) => entries.push(Entry::Pair(pair)),
                Err(error) => {
                    errors.push(error);
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

fn pair(input: ParseStream<'_>) -> syn::Result<Pair> {
    if let Some(text) = input.fork().parse::<Option<LitStr>>()? {
        return Err(syn::Error::new(
            text.span(),
            format!("write `key = \"{}\"`; every argument has a name", text.value()),
        ));
    }
    let name = input
        .call(Ident::parse_any)
        .map_err(|error| syn::Error::new(error.span(), "expected an argument, such as `ttl = \"30s\"`"))?;
    if input.peek(Token![=]) && !input.peek(Token![==]) {
        input.parse::<Token![=]>()?;
    } else {
        let known = NAMES.iter().any(|known| name == known);
        return Err(if known {
            syn::Error::new(
                name.span(),
                format!("`{name}` takes a value: write `{}`", example(&name)),
            )
        } else {
            unknown(&name, &name.unraw().to_string())
        });
    }
    if input.is_empty() || input.peek(Token![,]) {
        return Err(syn::Error::new(
            name.span(),
            format!("the value is missing: write `{}`", example(&name)),
        ));
    }
    Ok(Pair {
        name,
        value: input.parse()?,
    })
}

fn example(name: &Ident) -> &'static str {
    match name.to_string().as_str() {
        "key" => "key = \"order:{order_id}\"",
        "ttl" => "ttl = \"30s\"",
        "wait" => "wait = \"5s\"",
        "manager" => "manager = self.locks",
        "renew" => "renew = false",
        "max_hold" => "max_hold = \"10m\"",
        "hold_min" => "hold_min = \"1s\"",
        "on_lost" => "on_lost = \"signal\"",
        "on_busy" => "on_busy = Ok(())",
        "on_error" => "on_error = |error| Err(error.into())",
        "crate" => "crate = my_framework::dblock",
        _ => "name = value",
    }
}

/// Whether this is the key, perhaps misspelt: then the key is not reported as missing too.
fn is_key(name: &Ident) -> bool {
    meant(&name.unraw().to_string()) == Some("key")
}

/// The argument that `text` was probably meant to be.
fn meant(text: &str) -> Option<&'static str> {
    // The names that other libraries use.
    let elsewhere = match text {
        "timeout" | "wait_for" | "acquire_timeout" => Some("wait"),
        "lease" | "duration" | "expire" | "expires" | "expiry" => Some("ttl"),
        "name" | "lock" | "resource" | "id" => Some("key"),
        "store" | "locks" | "pool" | "client" => Some("manager"),
        _ => None,
    };
    elsewhere.or_else(|| suggest::closest(text, NAMES))
}

fn unknown(name: &Ident, text: &str) -> syn::Error {
    let hint = match meant(text) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("expected {}", suggest::list(&NAMES, "or")),
    };
    syn::Error::new(name.span(), format!("unknown argument `{text}`; {hint}"))
}

fn duplicate(first: &Pair, second: &Pair) -> syn::Error {
    let name = &second.name;
    let value = &first.value;
    let given = quote::quote!(#value).to_string();
    syn::Error::new(
        name.span(),
        format!("`{name}` is given twice; the first is `{name} = {given}`"),
    )
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    /// The arguments that were read, and the messages about the others.
    fn read(tokens: TokenStream) -> (Args, Vec<String>) {
        let mut errors = Errors::default();
        let args = Args::parse(tokens, Span::call_site(), &mut errors);
        let messages = errors
            .finish()
            .err()
            .into_iter()
            .flatten()
            .map(|error| error.to_string());
        (args, messages.collect())
    }

    #[test]
    fn values_with_commas_are_one_value() {
        let (args, messages) = read(quote! {
            key = f::<A, B>(a, b), on_error = |_| Err::<(), _>(E), crate = self::x, wait = "forever",
        });
        assert!(messages.is_empty(), "{messages:?}");
        assert!(matches!(args.key, Some(Key::Expr(Expr::Call(_)))));
        assert!(matches!(args.on_error, Some(Expr::Closure(_))));
        assert!(matches!(args.wait, Some(Wait::Forever)));
    }

    #[test]
    fn reading_goes_on_behind_a_mistake() {
        let (args, messages) =
            read(quote!(key = , ttl "5s", wait = "5s", renew, max_hold = 1 2, hold_min = "1s"));
        assert_eq!(messages.len(), 4, "{messages:?}");
        assert!(args.wait.is_some() && args.hold_min.is_some());
        // A key that could not be read is not reported as missing too.
        assert!(
            !messages
                .iter()
                .any(|message| message.contains("is missing; name")),
            "{messages:?}"
        );
    }

    #[test]
    fn a_misspelt_key_is_not_missing_as_well() {
        for name in ["kye", "name"] {
            let (_, messages) = read(format!("{name} = \"a\"").parse().unwrap());
            assert_eq!(
                messages,
                [format!("unknown argument `{name}`; did you mean `key`?")]
            );
        }
        let (_, messages) = read(quote!(tll = "30s"));
        assert_eq!(messages.len(), 2, "{messages:?}");
    }

    #[test]
    fn a_duplicate_names_the_first() {
        let (args, messages) = read(quote!(key = "a", key = "b"));
        assert_eq!(messages, ["`key` is given twice; the first is `key = \"a\"`"]);
        assert!(matches!(args.key, Some(Key::Template(key)) if key.value() == "a"));
    }

    #[test]
    fn the_examples_in_messages_are_accepted() {
        for name in NAMES {
            let example = example(&Ident::new(name, Span::call_site()));
            let key = if name == "key" { "" } else { "key = \"a\", " };
            let (_, messages) = read(format!("{key}{example}").parse().unwrap());
            assert!(messages.is_empty(), "{example}: {messages:?}");
        }
    }
}

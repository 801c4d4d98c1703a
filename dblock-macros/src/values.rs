//! Reads the value of each argument. For a wrong value it says what is expected.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Expr, ExprArray, ExprLit, ExprUnary, Ident, Lit, LitStr, Path, UnOp};

use crate::errors::Errors;
use crate::limits::MAX_KEYS;
use crate::{duration, suggest};

/// How a key is given.
pub(crate) enum Key {
    Template(LitStr),
    Expr(Expr),
}

/// The value of `key`, or of `keys`.
pub(crate) enum Keys {
    One(Key),
    All(Vec<Key>),
}

/// A duration.
pub(crate) enum Length {
    /// A string, checked.
    Known(Duration),
    /// Any other expression. Its type must be `Duration`.
    Expr(Expr),
}

impl Length {
    /// An expression of type `Duration`.
    pub(crate) fn to_code(&self, private: &TokenStream) -> TokenStream {
        match self {
            Self::Known(duration) => known(*duration, private),
            Self::Expr(value) => value.to_token_stream(),
        }
    }
}

/// A duration that was checked, as an expression of type `Duration`.
pub(crate) fn known(duration: Duration, private: &TokenStream) -> TokenStream {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    quote!(#private::Duration::from_millis(#millis))
}

/// The value of `wait`.
pub(crate) enum Wait {
    For(Length),
    Forever,
}

/// The value of `on_lost`.
pub(crate) enum OnLost {
    Cancel,
    Signal,
}

/// The value of `shared`, or of `limit`.
pub(crate) enum Sharing {
    Unlimited,
    /// An expression of type `u32`.
    Limit(Expr),
}

/// The literal, if the expression is one.
pub(crate) fn literal(value: &Expr) -> Option<&Lit> {
    match value {
        Expr::Lit(ExprLit { lit, .. }) => Some(lit),
        Expr::Paren(inner) => literal(&inner.expr),
        Expr::Group(inner) => literal(&inner.expr),
        _ => None,
    }
}

fn text(value: &Expr) -> Option<&LitStr> {
    match literal(value) {
        Some(Lit::Str(text)) => Some(text),
        _ => None,
    }
}

/// The single name, if the expression is one.
fn word(value: &Expr) -> Option<&Ident> {
    match value {
        Expr::Path(path) => path.path.get_ident(),
        _ => None,
    }
}

pub(crate) fn no_literal(value: &Expr, wanted: &str) -> syn::Result<Expr> {
    match literal(value) {
        Some(literal) => Err(syn::Error::new(
            literal.span(),
            format!("expected {wanted}, found a literal"),
        )),
        None => Ok(value.clone()),
    }
}

/// The name of an argument of the function.
pub(crate) fn argument(value: &Expr) -> syn::Result<Ident> {
    if let Some(name) = word(value) {
        return Ok(name.clone());
    }
    let message = match text(value).map(LitStr::value) {
        Some(name) if syn::parse_str::<Ident>(&name).is_ok() => {
            format!("write the argument's name without quotes: `tx = {name}`")
        }
        _ => "expected the name of the argument that is the transaction, such as `tx = tx`".into(),
    };
    Err(syn::Error::new_spanned(value, message))
}

pub(crate) fn key(value: &Expr) -> syn::Result<Key> {
    match literal(value) {
        Some(Lit::Str(text)) => Ok(Key::Template(text.clone())),
        Some(Lit::Int(number)) => Err(syn::Error::new(
            number.span(),
            format!("a key is text: write `key = \"{}\"`", number.base10_digits()),
        )),
        Some(other) => Err(syn::Error::new(
            other.span(),
            "a key is text: write a string such as \"order:{order_id}\", or an expression that is one",
        )),
        None if array(value).is_some() => Err(syn::Error::new_spanned(
            value,
            "`key` is a single key; for several write `keys = [\"account:{from}\", \"account:{to}\"]`",
        )),
        None => Ok(Key::Expr(value.clone())),
    }
}

fn array(value: &Expr) -> Option<&ExprArray> {
    match value {
        Expr::Array(array) => Some(array),
        Expr::Paren(inner) => array(&inner.expr),
        Expr::Group(inner) => array(&inner.expr),
        _ => None,
    }
}

/// The keys without those that have a mistake.
pub(crate) fn keys(value: &Expr, errors: &mut Errors) -> Vec<Key> {
    let example = "`keys = [\"account:{from}\", \"account:{to}\"]`";
    let Some(array) = array(value) else {
        errors.push(syn::Error::new_spanned(
            value,
            format!(
                "`keys` is an array, such as {example}. For a single key write `key = …`, for a number of keys that is \
                 not known before the call use `locks.lock(keys).run(body)`"
            ),
        ));
        return Vec::new();
    };
    let count = array.elems.len();
    if count == 0 {
        let message = format!("`keys` is empty; name what to lock, such as {example}");
        errors.push(syn::Error::new_spanned(value, message));
    }
    if count > MAX_KEYS {
        errors.push(syn::Error::new_spanned(
            value,
            format!(
                "`keys` has {count} keys, and one call takes at most {MAX_KEYS}; lock what they have in common instead"
            ),
        ));
    }
    let keys = array.elems.iter().map(key);
    keys.filter_map(|key| errors.take(key)).collect()
}

pub(crate) fn length(name: &str, value: &Expr) -> syn::Result<Length> {
    match literal(value) {
        Some(Lit::Str(text)) => match duration::parse(name, &text.value()) {
            Ok(duration) => Ok(Length::Known(duration)),
            Err(message) => Err(syn::Error::new(text.span(), message)),
        },
        Some(Lit::Int(number)) => Err(syn::Error::new(
            number.span(),
            format!(
                "the unit is missing: write `{name} = \"{}s\"`",
                number.base10_digits()
            ),
        )),
        Some(other) => Err(syn::Error::new(
            other.span(),
            match name {
                "wait" => {
                    "`wait` is a string such as \"5s\", \"forever\", or an expression of type `Duration`"
                        .into()
                }
                _ => format!("`{name}` is a string such as \"30s\" or an expression of type `Duration`"),
            },
        )),
        None => Ok(Length::Expr(value.clone())),
    }
}

pub(crate) fn wait(value: &Expr) -> syn::Result<Wait> {
    let Some(text) = text(value) else {
        if let Some(word) = word(value).filter(|word| *word == "forever") {
            return Err(syn::Error::new(
                word.span(),
                "write it as a string: `wait = \"forever\"`",
            ));
        }
        return length("wait", value).map(Wait::For);
    };
    let written = text.value();
    if written == "forever" {
        return Ok(Wait::Forever);
    }
    if written.starts_with(char::is_alphabetic) {
        let hint = if suggest::closest(&written, ["forever"]).is_some() {
            "Did you mean \"forever\"? "
        } else {
            ""
        };
        return Err(syn::Error::new(
            text.span(),
            format!("unknown wait \"{written}\". {hint}Expected a duration such as \"5s\", or \"forever\""),
        ));
    }
    length("wait", value).map(Wait::For)
}

pub(crate) fn renew(value: &Expr) -> syn::Result<Expr> {
    match literal(value) {
        Some(Lit::Bool(_)) | None => Ok(value.clone()),
        Some(other) => Err(syn::Error::new(other.span(), "`renew` is `true` or `false`")),
    }
}

pub(crate) fn limit(value: &Expr) -> syn::Result<Expr> {
    let refused = |message: String| Err(syn::Error::new_spanned(value, message));
    if let Expr::Unary(ExprUnary {
        op: UnOp::Neg(_),
        expr,
        ..
    }) = value
        && literal(expr).is_some()
    {
        return refused(NO_ROOM.into());
    }
    match literal(value) {
        None => Ok(value.clone()),
        Some(Lit::Int(number)) => match number.base10_parse::<u32>() {
            Ok(0) => refused(NO_ROOM.into()),
            Ok(_) => Ok(value.clone()),
            Err(_) => refused(format!(
                "`limit` is at most {}; for no limit write `shared`",
                u32::MAX
            )),
        },
        Some(Lit::Str(text)) if text.value().parse::<u32>().is_ok() => {
            refused(format!("`limit` is a number: write `limit = {}`", text.value()))
        }
        Some(_) => {
            refused("`limit` is a whole number, such as `limit = 8`, or an expression of type `u32`".into())
        }
    }
}

const NO_ROOM: &str = "with this limit nobody would get the lock; write 1 or more";

pub(crate) fn on_lost(value: &Expr) -> syn::Result<OnLost> {
    const ACCEPTED: &str =
        "Expected \"cancel\" (the body is dropped) or \"signal\" (the body goes on and is told)";
    let written = text(value)
        .map(LitStr::value)
        .or_else(|| word(value).map(ToString::to_string));
    match (written.as_deref(), text(value)) {
        (Some("cancel"), Some(_)) => Ok(OnLost::Cancel),
        (Some("signal"), Some(_)) => Ok(OnLost::Signal),
        (Some(word @ ("cancel" | "signal")), None) => Err(syn::Error::new_spanned(
            value,
            format!("write it as a string: `on_lost = \"{word}\"`"),
        )),
        (Some(other), Some(_)) => {
            let hint = suggest::closest(other, ["cancel", "signal"])
                .map(|near| format!("Did you mean \"{near}\"? "))
                .unwrap_or_default();
            Err(syn::Error::new_spanned(
                value,
                format!("unknown on_lost \"{other}\". {hint}{ACCEPTED}"),
            ))
        }
        _ => Err(syn::Error::new_spanned(
            value,
            format!("`on_lost` is a string. {ACCEPTED}"),
        )),
    }
}

pub(crate) fn krate(value: &Expr) -> syn::Result<Path> {
    match value {
        Expr::Path(path) if path.qself.is_none() => return Ok(path.path.clone()),
        _ => {}
    }
    let message = match text(value).map(LitStr::value) {
        Some(path) if syn::parse_str::<Path>(&path).is_ok() => {
            format!("write the path without quotes: `crate = {path}`")
        }
        _ => "`crate` is the path of dblock, such as `crate = my_framework::dblock`".into(),
    };
    Err(syn::Error::new_spanned(value, message))
}

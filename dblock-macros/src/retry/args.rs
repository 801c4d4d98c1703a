//! Reads the arguments of `#[optimistic_retry]`.

use std::time::Duration;

use proc_macro2::TokenStream;
use syn::{Expr, Lit, Path, parse_quote};

use crate::duration;
use crate::errors::Errors;
use crate::pairs::{self, Arguments, Pair};
use crate::values::{self, Length};

/// The arguments, in the order of the reference.
const ARGUMENTS: Arguments = Arguments {
    examples: &[
        ("times", "times = 5"),
        ("backoff", "backoff = \"10ms..200ms\""),
        ("within", "within = \"2s\""),
        ("crate", "crate = my_framework::dblock"),
    ],
    elsewhere: &[
        ("attempts", "times"),
        ("max_attempts", "times"),
        ("tries", "times"),
        ("retries", "times"),
        ("max_retries", "times"),
        ("delay", "backoff"),
        ("pause", "backoff"),
        ("sleep", "backoff"),
        ("wait", "backoff"),
        ("timeout", "within"),
        ("deadline", "within"),
        ("max_elapsed", "within"),
    ],
    refused: &[],
    of_bare_text: "within",
    such_as: "times = 5",
};

/// The arguments of one attribute.
pub(crate) struct Args {
    pub(crate) times: Option<u32>,
    pub(crate) backoff: Option<(Duration, Duration)>,
    pub(crate) within: Option<Length>,
    pub(crate) krate: Path,
}

impl Args {
    /// Reads the text between the parentheses of the attribute.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut args = Self {
            times: None,
            backoff: None,
            within: None,
            krate: parse_quote!(::dblock),
        };
        let entries = ARGUMENTS.read(tokens, errors);
        for pair in pairs::first_of_each(entries, errors) {
            let result = args.set(&pair);
            errors.take(result);
        }
        args
    }

    fn set(&mut self, Pair { name, value }: &Pair) -> syn::Result<()> {
        match name.to_string().as_str() {
            "times" => self.times = Some(times(value)?),
            "backoff" => self.backoff = Some(backoff(value)?),
            "within" => self.within = Some(values::length("within", value)?),
            "crate" => self.krate = values::krate(value)?,
            _ => return Err(ARGUMENTS.unknown(name)),
        }
        Ok(())
    }
}

fn times(value: &Expr) -> syn::Result<u32> {
    let refused = |message: String| Err(syn::Error::new_spanned(value, message));
    match values::literal(value) {
        Some(Lit::Int(number)) => match number.base10_parse() {
            Ok(times @ (0 | 1)) => refused(format!(
                "the first run counts too, so `times = {times}` never runs the body again; write 2 or more"
            )),
            Ok(times) => Ok(times),
            Err(_) => refused("`times` is too large; write a number such as `times = 5`".into()),
        },
        Some(Lit::Str(text)) if text.value().parse::<u32>().is_ok() => {
            refused(format!("`times` is a number: write `times = {}`", text.value()))
        }
        _ => refused(
            "`times` is a whole number, such as `times = 5`; for one that is computed, call `dblock::optimistic::retry`"
                .into(),
        ),
    }
}

/// `"10ms..200ms"`.
fn backoff(value: &Expr) -> syn::Result<(Duration, Duration)> {
    let Some(Lit::Str(text)) = values::literal(value) else {
        return Err(syn::Error::new_spanned(
            value,
            "`backoff` is a string with the shortest and the longest pause, such as `backoff = \"10ms..200ms\"`; for \
             pauses that are computed, call `dblock::optimistic::retry`",
        ));
    };
    range(&text.value()).map_err(|message| syn::Error::new(text.span(), message))
}

fn range(text: &str) -> Result<(Duration, Duration), String> {
    let Some((start, end)) = text.split_once("..") else {
        return Err(match duration::parse("backoff", text) {
            Ok(_) => format!(
                "\"{text}\" is one length; write the limit of the first pause and that of the longest, such as \
                 \"{text}..{text}\" or \"10ms..200ms\""
            ),
            Err(_) => format!("\"{text}\" is no range of pauses; write two lengths, such as \"10ms..200ms\""),
        });
    };
    let (start, end) = (start.trim(), end.trim());
    if let Some(end) = end.strip_prefix('=') {
        return Err(format!("write it without `=`: \"{start}..{end}\""));
    }
    let pauses = (
        duration::parse("backoff", start)?,
        duration::parse("backoff", end)?,
    );
    if pauses.0 > pauses.1 {
        return Err(format!(
            "the first pause is longer than the longest; write \"{end}..{start}\""
        ));
    }
    Ok(pauses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(tokens: &str) -> Vec<String> {
        let mut errors = Errors::default();
        Args::parse(tokens.parse().unwrap(), &mut errors);
        let errors = errors.finish().err().into_iter().flatten();
        errors.map(|error| error.to_string()).collect()
    }

    #[test]
    fn the_examples_in_messages_are_accepted() {
        for (_, example) in ARGUMENTS.examples {
            assert_eq!(messages(example), [""; 0], "{example}");
        }
        assert_eq!(messages(""), [""; 0]);
        assert_eq!(
            messages("backoff = \" 10ms .. 10ms \", within = self.limit"),
            [""; 0]
        );
    }

    #[test]
    fn a_mistake_is_named_with_its_fix() {
        for (written, hint) in [
            ("times = 0", "never runs the body again"),
            ("times = 1", "write 2 or more"),
            ("times = 99999999999", "too large"),
            ("times = \"5\"", "write `times = 5`"),
            ("times = \"often\"", "a whole number"),
            ("times = -1", "a whole number"),
            ("times = TIMES", "call `dblock::optimistic::retry`"),
            ("backoff = \"200ms..10ms\"", "write \"10ms..200ms\""),
            (
                "backoff = \"10ms..=200ms\"",
                "write it without `=`: \"10ms..200ms\"",
            ),
            ("backoff = \"10ms\"", "\"10ms..10ms\""),
            ("backoff = \"fast\"", "write two lengths"),
            ("backoff = \"10..200ms\"", "the unit is missing"),
            ("backoff = \"0ms..200ms\"", "must not be zero"),
            ("backoff = 10..200", "is a string"),
            ("within = 2", "write `within = \"2s\"`"),
            ("within = \"0s\"", "must not be zero"),
            ("within = true", "`within` is a string"),
            ("attempts = 5", "did you mean `times`?"),
            ("timeout = \"2s\"", "did you mean `within`?"),
            ("tiems = 5", "did you mean `times`?"),
            ("colour = 5", "expected `times`, `backoff`, `within` or `crate`"),
            ("\"2s\"", "write `within = \"2s\"`"),
            ("5", "such as `times = 5`"),
            ("times", "write `times = 5`"),
            ("times = 5, times = 6", "`times` is given twice"),
        ] {
            let messages = messages(written);
            assert!(
                matches!(&*messages, [message] if message.contains(hint)),
                "{written}: {messages:?}"
            );
        }
    }
}

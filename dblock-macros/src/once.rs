//! The attribute `#[run_once]`: its arguments, and the `RunOptions` that they make.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::visit_mut::VisitMut;
use syn::{Expr, GenericArgument, Lit, PathArguments, PathSegment, Type, TypeReference};

use crate::args::Args;
use crate::check::ungrouped;
use crate::errors::Errors;
use crate::function::Function;
use crate::lock::borrowed;
use crate::options::options;
use crate::pairs::{self, Arguments, Pair};
use crate::suggest;
use crate::values::{self, Length};

/// The arguments, in the order of the reference.
const ARGUMENTS: Arguments = Arguments {
    examples: &[
        ("key", "key = \"pay:{req.id}\""),
        ("remember", "remember = \"24h\""),
        ("on_crash", "on_crash = \"stop\""),
        ("fingerprint", "fingerprint = req"),
        ("tick", "tick = tick"),
        ("max_attempts", "max_attempts = 5"),
        ("backoff", "backoff = \"10s\""),
        ("ttl", "ttl = \"30s\""),
        ("wait", "wait = \"5s\""),
        ("manager", "manager = self.locks"),
        ("renew", "renew = false"),
        ("max_hold", "max_hold = \"10m\""),
        ("on_busy", "on_busy = Ok(receipt)"),
        ("on_error", "on_error = |error| Err(error.into())"),
        ("crate", "crate = my_framework::dblock"),
    ],
    elsewhere: &[
        ("timeout", "wait"),
        ("lease", "ttl"),
        ("id", "key"),
        ("idempotency_key", "key"),
        ("name", "key"),
        ("retention", "remember"),
        ("expires", "remember"),
        ("keep", "remember"),
        ("payload", "fingerprint"),
        ("hash", "fingerprint"),
        ("time", "tick"),
        ("scheduled_at", "tick"),
        ("retries", "max_attempts"),
        ("attempts", "max_attempts"),
        ("locks", "manager"),
        ("pool", "manager"),
    ],
    refused: &[
        (
            "hold_min",
            "a run takes no `hold_min`: while its outcome is remembered, it does not run again anyway; remove it",
        ),
        (
            "keys",
            "a run has a single `key`; put a `#[distributed_lock(keys = […])]` below this attribute",
        ),
        (
            "tx",
            "a run takes no `tx`: begin the transaction in the body, write `on_crash = \"complete_in\"`, and end with \
             `dblock::current_run()` and `Run::complete_in(&mut tx, &value)`, which commits the outcome with the work",
        ),
        (
            "on_lost",
            "a run takes no `on_lost`: it always stops when its lease is lost; work that must be whole goes into one \
             transaction: `on_crash = \"complete_in\"`",
        ),
        (
            "shared",
            "a run takes no `shared`: its body is alone with its key; remove it",
        ),
        (
            "limit",
            "a run takes no `limit`: its body is alone with its key; to limit how many runs with different keys go on \
             at once, put `#[distributed_lock(key = …, limit = …)]` below this attribute",
        ),
    ],
    of_bare_text: "key",
    such_as: "remember = \"24h\"",
};

/// For a function that returns nothing.
pub(crate) const NEEDS_RESULT: &str = "this function returns nothing, so it cannot say whether the run succeeded; return `Result<(), E>` \
    where `E: Display + From<dblock::LockError>`";

const MISSING_ON_CRASH: &str = "`on_crash` is missing: the process may die in the middle of the body, and then nobody knows how far \
    it came. Write `on_crash = \"retry\"` (it runs again), `on_crash = \"stop\"` (calls fail until somebody decides), or \
    `on_crash = \"complete_in\"` (all its work is in the transaction that it gives to `Run::complete_in`)";

/// The answer to a crash.
#[derive(Clone, Copy)]
enum OnCrash {
    Retry,
    Stop,
    CompleteIn,
}

/// The arguments of one attribute.
pub(crate) struct RunArgs {
    pub(crate) lock: Args,
    remember: Option<Length>,
    on_crash: Option<OnCrash>,
    fingerprint: Option<Expr>,
    tick: Option<Expr>,
    max_attempts: Option<Expr>,
    backoff: Option<Length>,
}

impl RunArgs {
    /// Reads the text between the parentheses of the attribute. A missing argument is reported at
    /// `attribute`.
    pub(crate) fn parse(tokens: TokenStream, attribute: Span, errors: &mut Errors) -> Self {
        let mut args = Self {
            lock: Args::none(),
            remember: None,
            on_crash: None,
            fingerprint: None,
            tick: None,
            max_attempts: None,
            backoff: None,
        };
        let entries = ARGUMENTS.read(tokens, errors);
        for (argument, missing) in [
            (
                "key",
                "`key` is missing; name what runs once, such as `key = \"pay:{req.id}\"`",
            ),
            (
                "remember",
                "`remember` is missing; say for how long the outcome is kept, such as `remember = \"24h\"`",
            ),
            ("on_crash", MISSING_ON_CRASH),
        ] {
            if !ARGUMENTS.has(argument, &entries) {
                errors.push(syn::Error::new(attribute, missing));
            }
        }
        for pair in pairs::first_of_each(entries, errors) {
            let result = args.set(&pair);
            errors.take(result);
        }
        args
    }

    fn set(&mut self, pair: &Pair) -> syn::Result<()> {
        let value = &pair.value;
        match pair.name.unraw().to_string().as_str() {
            "remember" => self.remember = Some(values::length("remember", value)?),
            "on_crash" => self.on_crash = Some(on_crash(value)?),
            "fingerprint" => {
                let fingerprint = values::no_literal(value, "an argument, such as `fingerprint = req`")?;
                self.fingerprint = Some(fingerprint);
            }
            "tick" => self.tick = Some(values::no_literal(value, "a time, such as `tick = tick`")?),
            "max_attempts" => self.max_attempts = Some(max_attempts(value)?),
            "backoff" => self.backoff = Some(values::length("backoff", value)?),
            "key" | "ttl" | "wait" | "manager" | "renew" | "max_hold" | "on_busy" | "on_error" | "crate" => {
                self.lock.set(pair)?;
            }
            _ => return Err(ARGUMENTS.unknown(&pair.name)),
        }
        Ok(())
    }

    /// `RunOptions::new(…)`, with a call for each argument that was given.
    pub(crate) fn options(&self, private: &TokenStream, function: &Function) -> TokenStream {
        let (Some(remember), Some(on_crash)) = (&self.remember, self.on_crash) else {
            return TokenStream::new();
        };
        let remember = remember.to_code(private);
        let on_crash = match on_crash {
            OnCrash::Retry => quote!(Retry),
            OnCrash::Stop => quote!(Stop),
            OnCrash::CompleteIn => quote!(CompleteIn),
        };
        let lock = options(&self.lock, private, function);
        let mut options =
            quote!(#private::RunOptions::new(#remember, #private::OnCrash::#on_crash).lock(#lock));
        if let Some(fingerprint) = &self.fingerprint {
            let fingerprint = borrowed(fingerprint);
            options.extend(quote!(.fingerprint(#fingerprint)));
        }
        if let Some(tick) = &self.tick {
            options.extend(quote!(.tick(#tick)));
        }
        if let Some(attempts) = &self.max_attempts {
            let attempts = attempts.to_token_stream();
            options.extend(quote!(.max_attempts(#attempts)));
        }
        if let Some(backoff) = &self.backoff {
            let backoff = backoff.to_code(private);
            options.extend(quote!(.backoff(#backoff)));
        }
        options
    }
}

/// The value is stored, and read back by later calls.
pub(crate) fn result(output: &Type, errors: &mut Errors) {
    struct Borrowed<'e>(&'e mut Errors);

    impl VisitMut for Borrowed<'_> {
        fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
            self.0.push(syn::Error::new_spanned(
                reference,
                "the result is stored, and later calls read it back, so it cannot borrow; return a value that owns its data, \
                 such as `String` instead of `&str`",
            ));
        }
    }

    let Type::Path(path) = ungrouped(output) else {
        return;
    };
    if let Some(PathSegment {
        arguments: PathArguments::AngleBracketed(arguments),
        ..
    }) = path.path.segments.last()
        && let Some(GenericArgument::Type(value)) = arguments.args.first()
    {
        Borrowed(errors).visit_type_mut(&mut value.clone());
    }
}

fn on_crash(value: &Expr) -> syn::Result<OnCrash> {
    const ACCEPTED: &str = "Expected \"retry\" (the body runs again), \"stop\" (calls fail until somebody decides) or \
                            \"complete_in\" (all work is in the transaction that is given to `Run::complete_in`)";
    let message = match values::literal(value) {
        Some(Lit::Str(text)) => match text.value().as_str() {
            "retry" => return Ok(OnCrash::Retry),
            "stop" => return Ok(OnCrash::Stop),
            "complete_in" => return Ok(OnCrash::CompleteIn),
            other => {
                let near = suggest::closest(other, ["retry", "stop", "complete_in"]);
                let hint = near
                    .map(|near| format!("Did you mean \"{near}\"? "))
                    .unwrap_or_default();
                format!("unknown on_crash \"{other}\". {hint}{ACCEPTED}")
            }
        },
        _ => format!("`on_crash` is a string. {ACCEPTED}"),
    };
    Err(syn::Error::new_spanned(value, message))
}

fn max_attempts(value: &Expr) -> syn::Result<Expr> {
    match values::literal(value) {
        Some(Lit::Int(number)) if number.base10_parse::<u64>().is_ok_and(|n| n == 0) => Err(syn::Error::new(
            number.span(),
            "with zero attempts the body never runs; give it at least 1, or leave `max_attempts` out for no limit",
        )),
        Some(Lit::Int(_)) | None => Ok(value.clone()),
        Some(_) => Err(syn::Error::new_spanned(
            value,
            "`max_attempts` is a number, such as `max_attempts = 5`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(tokens: &str) -> Vec<String> {
        let mut errors = Errors::default();
        RunArgs::parse(tokens.parse().unwrap(), Span::call_site(), &mut errors);
        let errors = errors.finish().err();
        errors
            .into_iter()
            .flatten()
            .map(|error| error.to_string())
            .collect()
    }

    #[test]
    fn the_examples_in_messages_are_accepted() {
        let needed = ["key", "remember", "on_crash"];
        let given: Vec<_> = ARGUMENTS.examples.iter().take(needed.len()).collect();
        for (name, example) in ARGUMENTS.examples {
            let others = given.iter().filter(|(other, _)| other != name);
            let others: Vec<_> = others.map(|(_, example)| *example).collect();
            let found = messages(&format!("{}, {example}", others.join(", ")));
            assert!(found.is_empty(), "{example}: {found:?}");
        }
    }

    #[test]
    fn a_run_is_alone() {
        for argument in ["shared", "limit = 8"] {
            let found = messages(&format!(
                "key = \"a\", remember = \"1h\", on_crash = \"stop\", {argument}"
            ));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("its body is alone"), "{found:?}");
        }
    }

    #[test]
    fn what_is_missing_is_said_at_once() {
        let found = messages("");
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found
                .iter()
                .any(|message| message.contains("on_crash = \"retry\"")),
            "{found:?}"
        );
        assert_eq!(
            messages("key = \"a\", remember = \"1h\", on_crahs = \"stop\"").len(),
            1
        );
    }
}

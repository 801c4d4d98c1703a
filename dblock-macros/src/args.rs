//! Reads the arguments of the attribute. It does not look at the function.

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::{Expr, Ident, Path, parse_quote};

use crate::errors::Errors;
use crate::pairs::{self, Arguments, Entry, Pair};
use crate::values::{self, Keys, Length, OnLost, Sharing, Wait};

/// The arguments, in the order of the reference.
const ARGUMENTS: Arguments = Arguments {
    examples: &[
        ("key", "key = \"order:{order_id}\""),
        ("keys", "keys = [\"account:{from}\", \"account:{to}\"]"),
        ("ttl", "ttl = \"30s\""),
        ("wait", "wait = \"5s\""),
        ("manager", "manager = self.locks"),
        ("renew", "renew = false"),
        ("max_hold", "max_hold = \"10m\""),
        ("hold_min", "hold_min = \"1s\""),
        ("shared", "shared"),
        ("limit", "limit = 8"),
        ("on_lost", "on_lost = \"signal\""),
        ("tx", "tx = tx"),
        ("on_busy", "on_busy = Ok(())"),
        ("on_error", "on_error = |error| Err(error.into())"),
        ("crate", "crate = my_framework::dblock"),
    ],
    elsewhere: &[
        ("timeout", "wait"),
        ("wait_for", "wait"),
        ("acquire_timeout", "wait"),
        ("lease", "ttl"),
        ("duration", "ttl"),
        ("expire", "ttl"),
        ("expires", "ttl"),
        ("expiry", "ttl"),
        ("name", "key"),
        ("lock", "key"),
        ("resource", "key"),
        ("id", "key"),
        ("store", "manager"),
        ("locks", "manager"),
        ("pool", "manager"),
        ("client", "manager"),
        ("transaction", "tx"),
        ("read", "shared"),
        ("reader", "shared"),
        ("readers", "shared"),
        ("read_only", "shared"),
        ("max", "limit"),
        ("slots", "limit"),
        ("capacity", "limit"),
        ("semaphore", "limit"),
        ("permits", "limit"),
        ("concurrency", "limit"),
        ("max_concurrency", "limit"),
        ("max_concurrent", "limit"),
    ],
    refused: &[(
        "on_wait",
        "the attribute takes no `on_wait`; where the wait is to be watched, write `locks.lock(key).on_wait(…).run(…)`",
    )],
    of_bare_text: "key",
    such_as: "ttl = \"30s\"",
};

/// The arguments of one attribute.
pub(crate) struct Args {
    /// `None` only when it is missing, which is a mistake.
    pub(crate) keys: Option<Keys>,
    pub(crate) ttl: Option<Length>,
    pub(crate) wait: Option<Wait>,
    pub(crate) manager: Option<Expr>,
    pub(crate) renew: Option<Expr>,
    pub(crate) max_hold: Option<Length>,
    pub(crate) hold_min: Option<Length>,
    pub(crate) sharing: Option<Sharing>,
    pub(crate) on_lost: Option<OnLost>,
    /// The argument that is the transaction.
    pub(crate) tx: Option<Ident>,
    pub(crate) on_busy: Option<Expr>,
    pub(crate) on_error: Option<Expr>,
    pub(crate) krate: Path,
}

impl Args {
    /// Reads the text between the parentheses of the attribute. A missing argument is reported at
    /// `attribute`.
    pub(crate) fn parse(tokens: TokenStream, attribute: Span, errors: &mut Errors) -> Self {
        let mut args = Self::none();
        let entries = ARGUMENTS.read(tokens, errors);
        let key_seen = entries.iter().any(|entry| match entry {
            Entry::Pair(pair) => is_key(&pair.name),
            Entry::Broken(name) => name.as_ref().is_none_or(is_key),
        });
        let pairs = pairs::first_of_each(entries, errors);
        for pair in &pairs {
            let result = args.set(pair);
            errors.take(result);
        }
        check_keys(&pairs, errors);
        check_sharing(&pairs, errors);
        args.check_lengths(&pairs, errors);
        if !key_seen {
            errors.push(syn::Error::new(
                attribute,
                "`key` is missing; name the resource to lock, such as `key = \"order:{order_id}\"`",
            ));
        }
        if let Some(tx) = &args.tx {
            args.check_with(tx, errors);
        }
        args
    }

    /// No arguments.
    pub(crate) fn none() -> Self {
        Self {
            keys: None,
            ttl: None,
            wait: None,
            manager: None,
            renew: None,
            max_hold: None,
            hold_min: None,
            sharing: None,
            on_lost: None,
            tx: None,
            on_busy: None,
            on_error: None,
            krate: parse_quote!(::dblock),
        }
    }

    /// Two lengths of which the one ends before the other.
    fn check_lengths(&self, pairs: &[Pair], errors: &mut Errors) {
        if let (Some(Length::Known(max_hold)), Some(Length::Known(hold_min))) =
            (&self.max_hold, &self.hold_min)
            && max_hold < hold_min
            && let Some(pair) = pairs.iter().find(|pair| pair.name == "max_hold")
        {
            errors.push(syn::Error::new_spanned(
                &pair.value,
                "`max_hold` ends the lock before `hold_min` is over; make it at least as long, or leave one of the two out",
            ));
        }
    }

    /// Arguments that do not go together with a transaction.
    fn check_with(&self, tx: &Ident, errors: &mut Errors) {
        if self.hold_min.is_some() {
            errors.push(syn::Error::new(
                tx.span(),
                "a lock that ends with a transaction cannot have `hold_min`: the commit frees the key; remove one of the two",
            ));
        }
        if matches!(self.wait, Some(Wait::Forever)) {
            errors.push(syn::Error::new(
                tx.span(),
                "a transaction must not wait for ever: two of them that take two keys in opposite order would wait for \
                 each other; give a `wait` such as \"5s\"",
            ));
        }
    }

    /// Takes an argument with a name that [`ARGUMENTS`] has.
    pub(crate) fn set(&mut self, Pair { name, value }: &Pair) -> syn::Result<()> {
        match name.unraw().to_string().as_str() {
            "key" => self.keys = Some(Keys::One(values::key(value)?)),
            "keys" => {
                let mut errors = Errors::default();
                self.keys = Some(Keys::All(values::keys(value, &mut errors)));
                errors.finish()?;
            }
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
            "shared" => self.sharing = Some(Sharing::Unlimited),
            "limit" => self.sharing = Some(Sharing::Limit(values::limit(value)?)),
            "on_lost" => self.on_lost = Some(values::on_lost(value)?),
            "tx" => self.tx = Some(values::argument(value)?),
            "on_busy" => self.on_busy = Some(value.clone()),
            "on_error" => {
                self.on_error = Some(values::no_literal(
                    value,
                    "a closure, such as `on_error = |error| Err(error.into())`",
                )?);
            }
            "crate" => self.krate = values::krate(value)?,
            _ => return Err(ARGUMENTS.unknown(name)),
        }
        Ok(())
    }
}

/// Refuses what does not go with `keys`.
fn check_keys(pairs: &[Pair], errors: &mut Errors) {
    let given = |name: &str| pairs.iter().position(|pair| pair.name == name);
    let Some(keys) = given("keys") else { return };
    if let Some(key) = given("key") {
        errors.push(syn::Error::new(
            pairs[key.max(keys)].name.span(),
            "`key` and `keys` exclude each other; write all keys into `keys`",
        ));
    }
    if let Some(tx) = given("tx") {
        errors.push(syn::Error::new(
            pairs[tx].name.span(),
            "`tx` takes a single `key`; for several keys write `locks.lock(keys).acquire()` in the function, and end the locks \
             with the transaction by `LockGuard::release_in`",
        ));
    }
    if let Some(hold_min) = given("hold_min") {
        errors.push(syn::Error::new(
            pairs[hold_min].name.span(),
            "`hold_min` does not go with `keys`: a key that is given back because another one is busy would stay busy \
             for that long",
        ));
    }
}

/// Refuses what does not go with `shared` or `limit`.
fn check_sharing(pairs: &[Pair], errors: &mut Errors) {
    let given = |name: &str| pairs.iter().position(|pair| pair.name == name);
    let (shared, limit) = (given("shared"), given("limit"));
    if let (Some(shared), Some(_)) = (shared, limit) {
        errors.push(syn::Error::new(
            pairs[shared].name.span(),
            "a lock with a `limit` is shared already; leave out `shared`",
        ));
    }
    let Some(at) = limit.or(shared) else { return };
    let name = &pairs[at].name;
    for (other, reason) in [
        (
            "keys",
            "takes a single `key`; for several put one attribute for each above the function, in the same order everywhere",
        ),
        (
            "hold_min",
            "does not go with `hold_min`: others run beside the call all the same; remove one of the two",
        ),
        (
            "tx",
            "does not go with `tx`: a transaction that keeps the lock's row would stop the renewals of all who share it; \
             remove one of the two",
        ),
    ] {
        if given(other).is_some() {
            errors.push(syn::Error::new(name.span(), format!("`{name}` {reason}")));
        }
    }
}

/// Whether this is `key` or `keys`, perhaps misspelt: then the key is not reported as missing too.
fn is_key(name: &Ident) -> bool {
    matches!(ARGUMENTS.meant(&name.unraw().to_string()), Some("key" | "keys"))
}

#[cfg(test)]
mod tests {
    use proc_macro2::{Delimiter, Group};
    use quote::{ToTokens, quote};

    use super::*;
    use crate::values::Key;

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
        assert!(matches!(args.keys, Some(Keys::One(Key::Expr(Expr::Call(_))))));
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
        assert!(matches!(args.keys, Some(Keys::One(Key::Template(key))) if key.value() == "a"));
    }

    #[test]
    fn a_value_may_be_in_parentheses() {
        let parentheses = |value: TokenStream| quote!((#value));
        let fragment = |value| parentheses(Group::new(Delimiter::None, value).to_token_stream());
        for around in [&parentheses as &dyn Fn(_) -> _, &fragment] {
            let (key, ttl, keys) = (around(quote!("a")), around(quote!("30s")), around(quote!(["a"])));
            let (args, messages) = read(quote!(key = #key, ttl = #ttl, on_lost = "cancel"));
            assert!(messages.is_empty(), "{messages:?}");
            assert!(matches!(args.keys, Some(Keys::One(Key::Template(_)))));
            assert!(matches!(args.ttl, Some(Length::Known(_))));
            assert!(matches!(args.on_lost, Some(OnLost::Cancel)));
            let (args, _) = read(quote!(keys = #keys));
            assert!(matches!(args.keys, Some(Keys::All(keys)) if keys.len() == 1));
        }
    }

    #[test]
    fn a_name_is_one_word_and_a_path_has_no_type() {
        for (written, words) in [
            ("tx = \"a b\"", "expected the name"),
            ("tx = \"a\"", "`tx = a`"),
            ("crate = <T>::a", "is the path of dblock"),
            ("crate = \"a b\"", "is the path of dblock"),
            ("crate = \"a::b\"", "`crate = a::b`"),
        ] {
            let (_, messages) = read(format!("key = \"a\", {written}").parse().unwrap());
            assert!(
                matches!(&*messages, [message] if message.contains(words)),
                "{messages:?}"
            );
        }
    }

    #[test]
    fn a_lock_may_end_when_it_may_be_free() {
        let (_, messages) = read(quote!(key = "a", max_hold = "1s", hold_min = "1s"));
        assert!(messages.is_empty(), "{messages:?}");
    }

    #[test]
    fn what_does_not_go_with_keys_is_refused() {
        let refused = |tokens| {
            let (_, messages) = read(tokens);
            assert_eq!(messages.len(), 1, "{messages:?}");
            messages.into_iter().next().unwrap()
        };
        assert!(refused(quote!(key = "a", keys = ["b"])).contains("exclude each other"));
        assert!(refused(quote!(keys = ["b"], hold_min = "1s")).contains("`hold_min`"));
        assert!(refused(quote!(keys = [])).contains("is empty"));
        assert!(refused(quote!(keys = "a")).contains("is an array"));
        assert!(refused(quote!(key = ["a"])).contains("a single key"));
        let most = ["\"a\""; 64].join(", ");
        let (_, messages) = read(format!("keys = [{most}]").parse().unwrap());
        assert!(messages.is_empty(), "{messages:?}");
        let many = ["\"a\""; 65].join(", ");
        let many: TokenStream = format!("keys = [{many}]").parse().unwrap();
        assert!(refused(many).contains("65 keys"));
        let (_, messages) = read(quote!(keys = [1, 2]));
        assert_eq!(messages.len(), 2, "each at its key: {messages:?}");
    }

    #[test]
    fn a_lock_is_shared_by_a_flag_or_a_limit() {
        let (args, messages) = read(quote!(shared, key = "a"));
        assert!(messages.is_empty(), "{messages:?}");
        assert!(matches!(args.sharing, Some(Sharing::Unlimited)));
        for limit in ["1", "(8)", "8u32", "4294967295", "self.limit", "LIMIT", "2 * 4"] {
            let (args, messages) = read(format!("key = \"a\", limit = {limit}").parse().unwrap());
            assert!(messages.is_empty(), "{limit}: {messages:?}");
            assert!(matches!(args.sharing, Some(Sharing::Limit(_))));
        }
    }

    #[test]
    fn what_makes_no_sense_for_a_shared_lock_is_refused() {
        let refused = |arguments: &str, word: &str| {
            let (_, messages) = read(format!("key = \"a\", {arguments}").parse().unwrap());
            assert_eq!(messages.len(), 1, "{arguments}: {messages:?}");
            assert!(messages[0].contains(word), "{arguments}: {messages:?}");
        };
        for value in ["true", "false", "", "8"] {
            refused(&format!("shared = {value}"), "`shared` takes no value");
        }
        refused("shared, shared", "given twice; write it once");
        refused("shared(8)", "`shared` takes no value");
        refused("limit", "`limit` takes a value: write `limit = 8`");
        refused("limit = 0", "nobody would get the lock");
        refused("limit = -1", "nobody would get the lock");
        refused("limit = 4294967296", "at most 4294967295");
        refused("limit = \"8\"", "write `limit = 8`");
        refused("limit = \"8s\"", "a whole number");
        refused("limit = 1.5", "a whole number");
        refused("permits = 8", "did you mean `limit`?");
        for (shares, name) in [("shared", "`shared`"), ("limit = 8", "`limit`")] {
            refused(&format!("{shares}, hold_min = \"1s\""), name);
            refused(&format!("tx = tx, {shares}"), name);
            let (_, messages) = read(format!("keys = [\"a\"], {shares}").parse().unwrap());
            assert_eq!(messages.len(), 1, "{messages:?}");
            assert!(messages[0].starts_with(name), "{messages:?}");
        }
        for both in ["shared, limit = 8", "limit = 8, shared"] {
            refused(both, "shared already");
        }
    }

    #[test]
    fn the_examples_in_messages_are_accepted() {
        for (name, example) in ARGUMENTS.examples {
            let key = if name.starts_with("key") {
                ""
            } else {
                "key = \"a\", "
            };
            let (_, messages) = read(format!("{key}{example}").parse().unwrap());
            assert!(messages.is_empty(), "{example}: {messages:?}");
        }
    }
}

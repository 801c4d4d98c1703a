//! Reads [`LockOptions`] and [`ManagerSettings`] from a configuration file, through serde.
//!
//! By hand, because what serde derives cannot say which name was meant, nor what a duration looks like.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::error::LockError;
use crate::options::{LockOptions, OnLost};
use crate::settings::{Limit, ManagerSettings};
use dblock_core::{duration, suggest};

impl<'de> Deserialize<'de> for LockOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer)
    }
}

impl<'de> Deserialize<'de> for ManagerSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer)
    }
}

/// A value that is read from a table of named fields.
trait Table: Default {
    const NAME: &'static str;
    const FIELDS: &'static [&'static str];

    /// Takes the value of a field.
    fn set<'de, A: MapAccess<'de>>(self, field: &'static str, map: &mut A) -> Result<Self, A::Error>;

    /// Refuses what does not fit together.
    fn check_all(&self) -> Result<(), LockError>;
}

impl Table for LockOptions {
    const NAME: &'static str = "the options of a lock";
    const FIELDS: &'static [&'static str] = &["ttl", "wait", "renew", "on_lost", "max_hold", "hold_min"];

    fn set<'de, A: MapAccess<'de>>(self, field: &'static str, map: &mut A) -> Result<Self, A::Error> {
        let length = |map: &mut A| text(field, map, |text| duration::parse(field, text));
        Ok(match field {
            "ttl" => self.ttl(length(map)?),
            "wait" => match text(field, map, wait)? {
                Some(wait) => self.wait(wait),
                None => self.wait_forever(),
            },
            "renew" => self.renew(map.next_value()?),
            "on_lost" => self.on_lost(text(field, map, on_lost)?),
            "max_hold" => self.max_hold(length(map)?),
            "hold_min" => self.hold_min(length(map)?),
            _ => return Err(unknown::<Self, _>(field)),
        })
    }

    fn check_all(&self) -> Result<(), LockError> {
        self.check()
    }
}

impl Table for ManagerSettings {
    const NAME: &'static str = "the settings of a lock manager";
    const FIELDS: &'static [&'static str] = &[
        "namespace",
        "table",
        "auto_migrate",
        "hand_over",
        "trust_any_server",
        "purge_after",
        "transaction_idle_limit",
    ];

    fn set<'de, A: MapAccess<'de>>(mut self, field: &'static str, map: &mut A) -> Result<Self, A::Error> {
        match field {
            "namespace" => self.namespace = map.next_value()?,
            "table" => self.table = map.next_value()?,
            "auto_migrate" => self.auto_migrate = map.next_value()?,
            "hand_over" => self.hand_over = map.next_value()?,
            "trust_any_server" => self.trust_any_server = map.next_value()?,
            "purge_after" => self.purge_after = Some(text(field, map, limit)?),
            "transaction_idle_limit" => self.transaction_idle_limit = Some(text(field, map, limit)?),
            _ => return Err(unknown::<Self, _>(field)),
        }
        Ok(self)
    }

    fn check_all(&self) -> Result<(), LockError> {
        self.check()
    }
}

/// The value of `wait`; `None` for ever.
fn wait(text: &str) -> Result<Option<Duration>, String> {
    match text {
        "forever" => Ok(None),
        _ if text.starts_with(char::is_alphabetic) => {
            let accepted = "a duration such as \"5s\", or \"forever\"";
            Err(unknown_word(text, &["forever"], accepted))
        }
        _ => duration::parse("wait", text).map(Some),
    }
}

fn on_lost(text: &str) -> Result<OnLost, String> {
    match text {
        "cancel" => Ok(OnLost::Cancel),
        "signal" => Ok(OnLost::Signal),
        _ => {
            let accepted = "\"cancel\" (the body is dropped) or \"signal\" (the body goes on and is told)";
            Err(unknown_word(text, &["cancel", "signal"], accepted))
        }
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit::None),
        _ if text.starts_with(char::is_alphabetic) => {
            let accepted = "a duration such as \"7d\", or \"none\"";
            Err(unknown_word(text, &["none"], accepted))
        }
        _ => duration::sum(text).map(Limit::After),
    }
}

fn unknown_word(text: &str, words: &[&'static str], accepted: &str) -> String {
    let near = suggest::closest(text, words.iter().copied());
    let hint = near
        .map(|near| format!("did you mean \"{near}\"? "))
        .unwrap_or_default();
    format!("\"{text}\" is unknown; {hint}expected {accepted}")
}

fn unknown<T: Table, E: Error>(name: &str) -> E {
    let hint = match suggest::closest(name, T::FIELDS.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("expected {}", suggest::list(T::FIELDS, "or")),
    };
    E::custom(format!("unknown setting `{name}`; {hint}"))
}

/// Reads a value that is a text. An error names the field.
fn text<'de, T, A: MapAccess<'de>>(
    field: &str,
    map: &mut A,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, A::Error> {
    let Written(text) = map.next_value()?;
    read(&text).map_err(|problem| A::Error::custom(format!("`{field}`: {problem}")))
}

fn read<'de, T: Table, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_struct(T::NAME, T::FIELDS, Reader(PhantomData))
}

struct Reader<T>(PhantomData<T>);

impl<'de, T: Table> Visitor<'de> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut table = T::default();
        let mut seen: Vec<&str> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let Some(field) = T::FIELDS.iter().copied().find(|field| *field == name) else {
                return Err(unknown::<T, _>(&name));
            };
            if seen.contains(&field) {
                return Err(A::Error::duplicate_field(field));
            }
            seen.push(field);
            table = table.set(field, &mut map)?;
        }
        table
            .check_all()
            .map_err(|error| A::Error::custom(error.to_string()))?;
        Ok(table)
    }
}

/// A text. A number counts as one, so that the error can say which unit to write behind it.
struct Written(String);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self(String::new()))
    }
}

impl Visitor<'_> for Written {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text such as \"30s\"")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self, E> {
        Ok(Self(text.to_owned()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self, E> {
        Ok(Self(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self, E> {
        Ok(Self(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self, E> {
        Ok(Self(number.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::LockManagerBuilder;

    fn toml<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_option_can_be_written() {
        let text = r#"
            ttl = "1m 30s"
            wait = "5s"
            renew = false
            on_lost = "signal"
            max_hold = "10m"
            hold_min = "500ms"
        "#;
        let expected = LockOptions::new()
            .ttl(Duration::from_secs(90))
            .wait(Duration::from_secs(5))
            .renew(false)
            .on_lost(OnLost::Signal)
            .max_hold(Duration::from_mins(10))
            .hold_min(Duration::from_millis(500));
        assert_eq!(toml(text), Ok(expected));
        assert_eq!(toml(""), Ok(LockOptions::new()));
        assert_eq!(toml("wait = \"forever\""), Ok(LockOptions::new().wait_forever()));
        let json = serde_json::from_str::<LockOptions>(r#"{"ttl": "10s", "on_lost": "cancel"}"#);
        assert_eq!(json.unwrap(), LockOptions::new().ttl(Duration::from_secs(10)));
    }

    #[test]
    fn every_setting_can_be_written() {
        let text = r#"
            namespace = "billing"
            table = "ops.locks"
            auto_migrate = true
            hand_over = false
            trust_any_server = true
            purge_after = "90d"
            transaction_idle_limit = "none"
        "#;
        let expected = ManagerSettings {
            namespace: Some("billing".into()),
            table: Some("ops.locks".into()),
            auto_migrate: Some(true),
            hand_over: Some(false),
            trust_any_server: Some(true),
            purge_after: Some(Limit::After(Duration::from_hours(90 * 24))),
            transaction_idle_limit: Some(Limit::None),
        };
        assert_eq!(toml(text), Ok(expected.clone()));
        assert_eq!(
            toml::<ManagerSettings>("purge_after = \"none\"").unwrap(),
            ManagerSettings {
                purge_after: Some(Limit::None),
                ..ManagerSettings::default()
            }
        );
        let json = serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap();
        assert_eq!(serde_json::from_value::<ManagerSettings>(json).unwrap(), expected);
        let builder = || LockManagerBuilder::new(crate::store::MemoryStore::new().into());
        let by_hand = builder()
            .namespace("billing")
            .table("ops.locks")
            .auto_migrate(true)
            .hand_over(false)
            .trust_any_server(true)
            .purge_after(Duration::from_hours(90 * 24))
            .transaction_idle_limit(None);
        assert_eq!(
            format!("{:?}", builder().settings(expected)),
            format!("{by_hand:?}")
        );
        let untouched = builder().settings(ManagerSettings::default());
        assert_eq!(format!("{untouched:?}"), format!("{:?}", builder()));
    }

    #[test]
    fn a_wrong_option_is_named_with_its_fix() {
        for (text, hint) in [
            ("tll = \"5s\"", "unknown setting `tll`; did you mean `ttl`?"),
            (
                "colour = 1",
                "expected `ttl`, `wait`, `renew`, `on_lost`, `max_hold` or `hold_min`",
            ),
            (
                "ttl = 30",
                "`ttl`: the unit is missing; write \"30s\" for seconds",
            ),
            ("ttl = -5", "`ttl`: \"-5\" is negative"),
            ("ttl = 1.5", "`ttl`: \"1.5\" has a fraction"),
            ("ttl = \"1M\"", "`M` would mean months"),
            ("ttl = \"999ms\"", "the shortest `ttl` is \"1s\""),
            ("ttl = true", "expected a text such as \"30s\""),
            ("max_hold = \"31d\"", "longer than 30 days"),
            ("hold_min = \"0s\"", "must not be zero"),
            ("wait = \"0s\"", "leave `wait` out"),
            ("wait = \"foreve\"", "did you mean \"forever\"?"),
            (
                "on_lost = \"cancle\"",
                "did you mean \"cancel\"? expected \"cancel\" (the body is dropped)",
            ),
            ("renew = \"yes\"", "expected a boolean"),
        ] {
            let error = toml::<LockOptions>(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
        let twice = serde_json::from_str::<LockOptions>(r#"{"ttl": "5s", "ttl": "6s"}"#);
        assert!(
            twice
                .unwrap_err()
                .to_string()
                .starts_with("duplicate field `ttl`")
        );
        let list = serde_json::from_str::<LockOptions>("[]").unwrap_err().to_string();
        assert!(list.contains("expected the options of a lock"), "{list}");
    }

    #[test]
    fn a_wrong_setting_is_refused_as_the_builder_refuses_it() {
        for (text, hint) in [
            ("namespcae = \"a\"", "did you mean `namespace`?"),
            ("url = \"postgres://\"", "expected `namespace`, `table`"),
            ("namespace = \"a:b\"", "':' separates the namespace from the key"),
            ("table = \"a b\"", "the table name \"a b\" is not allowed"),
            ("purge_after = \"1h\"", "give it at least a day"),
            (
                "purge_after = \"never\"",
                "expected a duration such as \"7d\", or \"none\"",
            ),
            ("transaction_idle_limit = \"0s\"", "at least a millisecond"),
        ] {
            let error = toml::<ManagerSettings>(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}

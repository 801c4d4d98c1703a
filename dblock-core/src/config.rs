//! How [`LockOptions`] are written in a configuration file.

use std::fmt;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::duration;
use crate::options::{LockOptions, OnLost};

/// [`LockOptions`] as they are written.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    #[serde(default, deserialize_with = "given")]
    ttl: Option<Written>,
    #[serde(default, deserialize_with = "given")]
    wait: Option<Written>,
    #[serde(default, deserialize_with = "given")]
    renew: Option<bool>,
    #[serde(default, deserialize_with = "given")]
    on_lost: Option<Loss>,
    #[serde(default, deserialize_with = "given")]
    max_hold: Option<Written>,
    #[serde(default, deserialize_with = "given")]
    hold_min: Option<Written>,
}

/// Reads a value that is present, and refuses null. Otherwise an empty value in a template would remove a
/// limit.
pub fn given<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Loss {
    Cancel,
    Signal,
}

/// A text. A number counts as one, so that the error can say which unit to write behind it.
#[derive(Debug, serde::Deserialize)]
#[serde(untagged, expecting = "expected a text such as \"30s\"")]
pub enum Written {
    Text(String),
    Whole(i64),
    Fraction(f64),
}

impl Written {
    /// Reads the value of `field`. An error names it.
    pub fn read<T>(self, field: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<T, String> {
        let text = match self {
            Self::Text(text) => text,
            Self::Whole(number) => number.to_string(),
            Self::Fraction(number) => number.to_string(),
        };
        read(&text).map_err(|problem| format!("`{field}`: {problem}"))
    }
}

// Not derived: a derive would demand `'de: 'static`, because of the function's name.
impl<'de> Deserialize<'de> for LockOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = deserializer.deserialize_map(Named)?;
        written.try_into().map_err(D::Error::custom)
    }
}

/// Options by their names. A derived struct would be read from a list too, by the order of its fields.
struct Named;

impl<'de> Visitor<'de> for Named {
    type Value = Options;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the options of a lock")
    }

    fn visit_map<M: MapAccess<'de>>(self, options: M) -> Result<Options, M::Error> {
        Options::deserialize(MapAccessDeserializer::new(options))
    }
}

impl TryFrom<Options> for LockOptions {
    type Error = String;

    fn try_from(written: Options) -> Result<Self, String> {
        let length = |field: &str, written: Option<Written>| {
            let read = |written: Written| written.read(field, |text| duration::parse(field, text));
            written.map(read).transpose()
        };
        let mut options = Self::new();
        if let Some(ttl) = length("ttl", written.ttl)? {
            options = options.ttl(ttl);
        }
        if let Some(wait) = written.wait {
            options = match wait.read("wait", |text| {
                or("forever", text, |text| duration::parse("wait", text))
            })? {
                Some(wait) => options.wait(wait),
                None => options.wait_forever(),
            };
        }
        if let Some(renew) = written.renew {
            options = options.renew(renew);
        }
        if let Some(loss) = written.on_lost {
            options = options.on_lost(match loss {
                Loss::Cancel => OnLost::Cancel,
                Loss::Signal => OnLost::Signal,
            });
        }
        if let Some(max_hold) = length("max_hold", written.max_hold)? {
            options = options.max_hold(max_hold);
        }
        if let Some(hold_min) = length("hold_min", written.hold_min)? {
            options = options.hold_min(hold_min);
        }
        options.check().map_err(|error| error.to_string())?;
        Ok(options)
    }
}

/// A duration, or `word`, which gives `None`.
pub fn or(
    word: &str,
    text: &str,
    duration: impl FnOnce(&str) -> Result<Duration, String>,
) -> Result<Option<Duration>, String> {
    if text == word {
        return Ok(None);
    }
    if text.starts_with(char::is_alphabetic) {
        return Err(format!(
            "\"{text}\" is unknown; expected a duration such as \"5s\", or \"{word}\""
        ));
    }
    duration(text).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml(text: &str) -> Result<LockOptions, String> {
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
    fn a_wrong_option_is_named_with_its_fix() {
        for (text, hint) in [
            (
                "tll = \"5s\"",
                "unknown field `tll`, expected one of `ttl`, `wait`",
            ),
            (
                "colour = 1",
                "expected one of `ttl`, `wait`, `renew`, `on_lost`, `max_hold`, `hold_min`",
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
            (
                "wait = \"foreve\"",
                "expected a duration such as \"5s\", or \"forever\"",
            ),
            (
                "on_lost = \"cancle\"",
                "unknown variant `cancle`, expected `cancel` or `signal`",
            ),
            ("renew = \"yes\"", "expected a boolean"),
        ] {
            let error = toml(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
        let twice = serde_json::from_str::<LockOptions>(r#"{"ttl": "5s", "ttl": "6s"}"#);
        assert!(
            twice
                .unwrap_err()
                .to_string()
                .starts_with("duplicate field `ttl`")
        );
        for field in ["ttl", "wait", "renew", "on_lost", "max_hold", "hold_min"] {
            let null = serde_json::from_str::<LockOptions>(&format!(r#"{{"{field}": null}}"#));
            assert!(null.is_err(), "{field}");
        }
        for other in ["30", "[]", r#"["10s"]"#] {
            let error = serde_json::from_str::<LockOptions>(other)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("expected the options of a lock"),
                "{other}: {error}"
            );
        }
    }
}

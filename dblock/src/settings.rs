//! The settings of a manager as a value, for a service's configuration file.

use std::time::Duration;

use dblock_core::config::{Written, or};
use dblock_core::duration;
use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer};

use crate::builder::LockManagerBuilder;

/// Settings of a [`LockManagerBuilder`], read from a configuration file by serde (feature `serde`). Each is
/// optional: a setting that is not given keeps the builder's value. Durations are texts such as `"30s"` or
/// `"1m 30s"`, as in the attribute.
///
/// | setting | value | see |
/// |---|---|---|
/// | `namespace` | text | [`LockManagerBuilder::namespace`] |
/// | `table` | text | [`LockManagerBuilder::table`] |
/// | `auto_migrate` | true or false | [`LockManagerBuilder::auto_migrate`] |
/// | `hand_over` | true or false | [`LockManagerBuilder::hand_over`] |
/// | `trust_any_server` | true or false | [`LockManagerBuilder::trust_any_server`] |
/// | `purge_after` | a duration, or `"none"` | [`LockManagerBuilder::purge_after`] |
/// | `transaction_idle_limit` | a duration, or `"none"` | [`LockManagerBuilder::transaction_idle_limit`] |
///
/// The URL is not among them, because it often has a password. An unknown or wrong setting is an error, which
/// says what is accepted. The builder's `build` refuses what its methods would refuse.
///
/// ```
/// use dblock::{LockManager, LockOptions, ManagerSettings};
///
/// #[derive(serde::Deserialize)]
/// struct Config {
///     locks: ManagerSettings,
///     settle: LockOptions,
/// }
///
/// let config: Config = toml::from_str(
///     r#"
///     [locks]
///     namespace = "billing"
///     purge_after = "14d"
///
///     [settle]
///     ttl = "10s"
///     wait = "5s"
///     "#,
/// )?;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = LockManager::builder_for_url("memory:")?.settings(config.locks).build().await?;
/// let guard = locks.lock("order:42").options(&config.settle).acquire().await?;
/// assert_eq!(guard.key(), "order:42");
/// assert_eq!(guard.full_key(), "billing:order:42");
/// # guard.release().await?;
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// # Ok::<_, toml::de::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ManagerSettings {
    #[serde(deserialize_with = "dblock_core::config::given")]
    pub(crate) namespace: Option<String>,
    #[serde(deserialize_with = "dblock_core::config::given")]
    pub(crate) table: Option<String>,
    #[serde(deserialize_with = "dblock_core::config::given")]
    pub(crate) auto_migrate: Option<bool>,
    #[serde(deserialize_with = "dblock_core::config::given")]
    pub(crate) hand_over: Option<bool>,
    #[serde(deserialize_with = "dblock_core::config::given")]
    pub(crate) trust_any_server: Option<bool>,
    #[serde(deserialize_with = "purge_after")]
    pub(crate) purge_after: Option<Limit>,
    #[serde(deserialize_with = "transaction_idle_limit")]
    pub(crate) transaction_idle_limit: Option<Limit>,
}

/// A duration that may be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    None,
    After(Duration),
}

fn purge_after<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Limit>, D::Error> {
    limit("purge_after", deserializer)
}

fn transaction_idle_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Limit>, D::Error> {
    limit("transaction_idle_limit", deserializer)
}

/// Reads a limit that is given. An error names its field.
fn limit<'de, D: Deserializer<'de>>(field: &str, deserializer: D) -> Result<Option<Limit>, D::Error> {
    let written = Written::deserialize(deserializer)?;
    let length = written.read(field, |text| or("none", text, duration::sum));
    let length = length.map_err(D::Error::custom)?;
    Ok(Some(length.map_or(Limit::None, Limit::After)))
}

impl From<Limit> for Option<Duration> {
    fn from(limit: Limit) -> Self {
        match limit {
            Limit::None => None,
            Limit::After(length) => Some(length),
        }
    }
}

impl LockManagerBuilder {
    /// Sets what is given in `settings`. The other settings keep their values.
    pub fn settings(mut self, settings: ManagerSettings) -> Self {
        if let Some(namespace) = settings.namespace {
            self = self.namespace(namespace);
        }
        if let Some(table) = settings.table {
            self = self.table(table);
        }
        if let Some(auto_migrate) = settings.auto_migrate {
            self = self.auto_migrate(auto_migrate);
        }
        if let Some(hand_over) = settings.hand_over {
            self = self.hand_over(hand_over);
        }
        if let Some(trust) = settings.trust_any_server {
            self = self.trust_any_server(trust);
        }
        if let Some(idle) = settings.purge_after {
            self = self.purge_after(idle);
        }
        if let Some(limit) = settings.transaction_idle_limit {
            self = self.transaction_idle_limit(limit);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    fn toml<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, String> {
        toml::from_str(text).map_err(|error| error.to_string())
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
        let builder = || crate::LockManager::builder(crate::store::MemoryStore::new());
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
    fn a_wrong_setting_is_named_and_its_limits_are_the_builders() {
        for (text, hint) in [
            (
                "namespcae = \"a\"",
                "unknown field `namespcae`, expected one of `namespace`",
            ),
            ("url = \"postgres://\"", "expected one of `namespace`, `table`"),
            (
                "purge_after = \"never\"",
                "`purge_after`: \"never\" is unknown; expected a duration such as \"5s\", or \"none\"",
            ),
            (
                "transaction_idle_limit = \"never\"",
                "`transaction_idle_limit`: \"never\" is unknown",
            ),
        ] {
            let error = toml::<ManagerSettings>(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
        for field in [
            "namespace",
            "auto_migrate",
            "purge_after",
            "transaction_idle_limit",
        ] {
            let null = serde_json::from_str::<ManagerSettings>(&format!(r#"{{"{field}": null}}"#));
            assert!(null.is_err(), "{field}");
        }
        for (text, hint) in [
            ("namespace = \"a:b\"", "':' separates the namespace from the key"),
            ("table = \"a b\"", "the table name \"a b\" is not allowed"),
            ("purge_after = \"1h\"", "give it at least a day"),
            ("transaction_idle_limit = \"0s\"", "at least a millisecond"),
        ] {
            let settings = toml::<ManagerSettings>(text).unwrap();
            let builder = crate::LockManager::builder(crate::store::MemoryStore::new());
            let error = builder.settings(settings).check().unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}

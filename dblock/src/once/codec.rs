//! Results as JSON, and the hash of an argument. No message repeats a value: it may be a secret.

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::Once;

/// A type that a run can return: it can be kept as JSON and read back. Implemented for every `Serialize +
/// DeserializeOwned`, `()` and `Option` included, and for [`Once`] of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be remembered as the result of a run",
    label = "expected a type that is `serde::Serialize` and `serde::de::DeserializeOwned`",
    note = "derive `Serialize` and `Deserialize` of serde for it, or return `()` or an id"
)]
pub trait Remembered: Sized {
    #[doc(hidden)]
    fn encode(&self) -> Result<String, serde_json::Error>;
    #[doc(hidden)]
    fn decode(json: &str, ran: bool) -> Result<Self, serde_json::Error>;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> Remembered for T {
    fn encode(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    fn decode(json: &str, _: bool) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> Remembered for Once<T> {
    fn encode(&self) -> Result<String, serde_json::Error> {
        let (Self::Ran(value) | Self::Replayed(value)) = self;
        serde_json::to_string(value)
    }

    fn decode(json: &str, ran: bool) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json).map(if ran { Self::Ran } else { Self::Replayed })
    }
}

/// A type whose values can be told apart by a hash of their JSON. Implemented for every `Serialize`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the fingerprint of a run",
    label = "expected a type that is `serde::Serialize`",
    note = "derive `Serialize` of serde for it, or name a part of it that has it, such as `fingerprint = req.amount`"
)]
pub trait Fingerprint {
    #[doc(hidden)]
    fn fingerprint(&self) -> Result<Uuid, String>;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + ?Sized> Fingerprint for T {
    fn fingerprint(&self) -> Result<Uuid, String> {
        fingerprint(self)
    }
}

/// The JSON of a result of at most `limit` bytes, or why it cannot be kept.
pub(super) fn within(json: Result<String, serde_json::Error>, limit: usize) -> Result<String, String> {
    match json {
        Ok(json) if json.len() <= limit => Ok(json),
        Ok(json) => Err(format!(
            "it has {} bytes of JSON, more than the {limit} of `max_result`",
            json.len()
        )),
        Err(error) => Err(format!("it cannot be written as JSON: {error}")),
    }
}

/// A hash of the value's JSON that does not depend on the order of a map's keys, the process or the version
/// of dblock.
fn fingerprint(value: &(impl Serialize + ?Sized)) -> Result<Uuid, String> {
    let mut json = serde_json::to_value(value).map_err(|error| error.to_string())?;
    // Another crate of the program may have chosen that maps keep the order in which they were filled.
    json.sort_all_objects();
    Ok(Uuid::new_v5(&Uuid::NAMESPACE_OID, json.to_string().as_bytes()))
}

/// The reason why a stored result cannot be read as a `T`. It says where, and nothing of the result.
pub(super) fn undecodable<T>(error: &serde_json::Error) -> String {
    format!(
        "{:?} error at line {} column {}, read as `{}`",
        error.classify(),
        error.line(),
        error.column(),
        std::any::type_name::<T>()
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn nothing_and_none_are_results() {
        assert_eq!(().encode().unwrap(), "null");
        <()>::decode("null", true).unwrap();
        assert_eq!(None::<u8>.encode().unwrap(), "null");
        assert_eq!(Option::<u8>::decode("null", false).unwrap(), None);
    }

    #[test]
    fn once_is_kept_as_what_is_in_it() {
        assert_eq!(Once::Ran(7).encode().unwrap(), "7");
        assert_eq!(Once::<u8>::decode("7", true).unwrap(), Once::Ran(7));
        assert_eq!(Once::<u8>::decode("7", false).unwrap(), Once::Replayed(7));
    }

    /// Stored fingerprints must not change with a version.
    #[test]
    fn fingerprints_stay_what_they_are() {
        let map: HashMap<_, _> = [("b", 1), ("a", 2)].into();
        let known = fingerprint(&map).unwrap();
        assert_eq!(known, Uuid::new_v5(&Uuid::NAMESPACE_OID, br#"{"a":2,"b":1}"#));
        assert_eq!(known.to_string(), "63af6eb6-4cdd-5e64-8a68-388d63c0dec1");
        assert_ne!(fingerprint("1"), fingerprint(&1));
    }

    #[test]
    fn no_message_repeats_a_value() {
        let error = serde_json::from_str::<u64>("\"hush\"").unwrap_err();
        assert!(error.to_string().contains("hush"));
        assert_eq!(
            undecodable::<u64>(&error),
            "Data error at line 1 column 6, read as `u64`"
        );
        assert_eq!(
            within(Ok("hush".into()), 3).unwrap_err(),
            "it has 4 bytes of JSON, more than the 3 of `max_result`"
        );
        assert_eq!(within(Ok("hush".into()), 4).unwrap(), "hush");
    }
}

//! The key of a request: as the client sends it, and as the record has it.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use sha2::{Digest, Sha256};

use crate::problem::Problem;

/// The header of the draft.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest key that a client may send, in bytes.
const LONGEST: usize = 255;

/// The longest part of a record's key that people read, in bytes. With the hash and the longest namespace it
/// stays within [`dblock::Key::MAX_BYTES`].
const LONGEST_NAME: usize = 80;

/// The client's key; `None` where there is no such header.
pub(crate) fn read(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let key = value
        .to_str()
        .ok()
        .and_then(|text| parse(text.trim_matches([' ', '\t'])));
    match key {
        Some(key) if values.next().is_none() && (1..=LONGEST).contains(&key.len()) => Ok(Some(key)),
        _ => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "Idempotency-Key is not valid",
            "Send one Idempotency-Key with 1 to 255 visible ASCII characters between double quotes, such as a UUID.",
        )),
    }
}

/// A String of RFC 9651 (section 3.3.3) without parameters, or what many clients send: the same without
/// quotes.
fn parse(text: &str) -> Option<String> {
    let Some(quoted) = text.strip_prefix('"') else {
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | ',' | ';');
        return text.chars().all(is_plain).then(|| text.to_owned());
    };
    let mut chars = quoted.strip_suffix('"')?.chars();
    let mut key = String::new();
    while let Some(c) = chars.next() {
        key.push(match c {
            '\\' => chars.next().filter(|c| matches!(c, '"' | '\\'))?,
            ' '..='~' if c != '"' => c,
            _ => return None,
        });
    }
    Some(key)
}

/// The key of the record of a request, without the manager's namespace: for
/// [`Admin::record`](dblock::Admin::record), [`resolve`](dblock::Admin::resolve) and
/// [`forget`](dblock::Admin::forget). `path` is the whole path, without the query. `caller` is what
/// [`Scope::caller`](crate::Scope::caller) gives for the request, and `None` for
/// [`Scope::everyone`](crate::Scope::everyone). `key` is the client's key without quotes.
///
/// It begins with the method and the path, up to 80 bytes, for people. A SHA-256 of all four follows.
///
/// ```
/// use axum::http::Method;
///
/// let key = dblock_axum::record_key(&Method::POST, "/payments", Some("tenant 7"), "8e03978e-40d5-43e8-bc93-6894a57f9324");
/// assert!(key.starts_with("http:POST /payments:"));
/// ```
pub fn record_key(method: &Method, path: &str, caller: Option<&str>, key: &str) -> String {
    let whose = if caller.is_some() { "caller" } else { "everyone" };
    let hash = hash([method.as_str(), path, whose, caller.unwrap_or_default(), key].map(str::as_bytes));
    let mut name = format!("http:{method} {path}");
    name.truncate(name.floor_char_boundary(LONGEST_NAME));
    format!("{name}:{hash}")
}

/// A hash that tells a request from another one with the same key: of its query and its body.
pub(crate) fn fingerprint(query: &str, body: &[u8]) -> String {
    hash([query.as_bytes(), body])
}

/// A hash of the parts, and of where each one ends.
fn hash<const N: usize>(parts: [&[u8]; N]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("{:x}", Bytes::copy_from_slice(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use dblock::Key;

    use super::*;

    fn sent(values: &[&str]) -> Result<Option<String>, Problem> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(
                IDEMPOTENCY_KEY,
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        read(&headers)
    }

    #[test]
    fn a_key_is_a_quoted_string_and_the_quotes_may_be_left_out() {
        assert_eq!(sent(&[]), Ok(None));
        let longest = "k".repeat(LONGEST);
        for (value, key) in [
            ("\"8e03978e-40d5\"", "8e03978e-40d5"),
            ("8e03978e-40d5", "8e03978e-40d5"),
            ("  \"a b\"\t", "a b"),
            (r#""a\"b\\c""#, "a\"b\\c"),
            ("\"a;b=c,d\"", "a;b=c,d"),
            (&longest, &longest),
        ] {
            assert_eq!(sent(&[value]), Ok(Some(key.to_owned())), "{value}");
        }
    }

    #[test]
    fn bad_keys_are_refused() {
        let long = "k".repeat(LONGEST + 1);
        for bad in [
            "",
            "\"\"",
            "\"",
            "\"a",
            "a\"",
            "\"a\"b\"",
            "a b",
            "a,b",
            "\"a\", \"b\"",
            "\"a\";v=1",
            r#""a\b""#,
            r#""a\""#,
            "\"é\"",
            "é",
            &long,
        ] {
            assert!(sent(&[bad]).is_err(), "{bad}");
        }
        assert!(sent(&["a", "a"]).is_err(), "twice");
    }

    /// A stored key must not change with a version.
    #[test]
    fn the_keys_of_records_stay_what_they_are() {
        let key = record_key(&Method::POST, "/payments", Some("tenant 7"), "k");
        let hash = "a9835049ee8db9de970cc761ad7b8ce4570b93da59e5a5aa5ff99bf21134573e";
        assert_eq!(key, format!("http:POST /payments:{hash}"));
        let known = "9c6d0c3db7686345f1df7f0845a72fc8428fb497de503b5b532ba5935fbd21a7";
        assert_eq!(fingerprint("a=1", b"{}"), known);
    }

    #[test]
    fn each_part_tells_records_apart() {
        let (post, path) = (&Method::POST, "/a");
        let all = [
            record_key(post, path, None, "k"),
            record_key(&Method::PATCH, path, None, "k"),
            record_key(post, "/b", None, "k"),
            record_key(post, path, Some(""), "k"),
            record_key(post, path, Some("a"), "bk"),
            record_key(post, path, Some("ab"), "k"),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:#?}");
        assert_ne!(fingerprint("a", b"b"), fingerprint("", b"ab"));
    }

    #[test]
    fn the_key_of_a_record_fits_behind_the_longest_namespace() {
        let namespace = "n".repeat(Key::MAX_NAMESPACE_BYTES);
        let key = record_key(&Method::POST, &"/é".repeat(500), Some("t"), &"k".repeat(LONGEST));
        Key::new(Some(&namespace), &key).unwrap();
    }
}

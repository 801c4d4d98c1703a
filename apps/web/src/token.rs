//! The token in a form. It says that this page has shown the question to this browser a short while ago, so
//! no other page can have made the form.
//!
//! It is a hash, keyed with the secret, of what is to be done to which holder of which key, the time at which
//! the token ends, and a random cookie of the browser. An attacker who can open the page himself gets tokens for his own
//! cookie only.

use std::time::{Duration, SystemTime};

use axum::http::request::Parts;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use uuid::Uuid;

use crate::cookies;

/// How long a question may stand before it is answered.
const LASTS: Duration = Duration::from_mins(10);

const COOKIE: &str = "dblock_page";

/// The browser's cookie, or a fresh one and the header that sets it. A cookie of a session, which no script
/// can read and no other site can have sent.
pub(crate) fn cookie(request: &Parts) -> (String, Option<String>) {
    if let Some(found) = cookies::named(request, COOKIE).next() {
        return (found.to_owned(), None);
    }
    let fresh = Uuid::new_v4().simple().to_string();
    let set = format!("{COOKIE}={fresh}; HttpOnly; SameSite=Strict");
    (fresh, Some(set))
}

/// A token for doing `action` to the holder of `key` with the fence token `fence`, from the browser with that
/// cookie.
pub(crate) fn make(secret: &[u8; 32], cookie: &str, action: &str, key: &str, fence: i64) -> String {
    let ends = now() + LASTS.as_secs();
    let hash = hash(secret, cookie, action, key, fence, ends)
        .finalize()
        .into_bytes();
    let digits: Vec<_> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{ends}.{}", digits.concat())
}

/// Whether [`make`] has made `token` of this, for the browser that has sent the request.
pub(crate) fn fits(
    secret: &[u8; 32],
    request: &Parts,
    action: &str,
    key: &str,
    fence: i64,
    token: &str,
) -> bool {
    let Some((ends, digits)) = token.split_once('.') else {
        return false;
    };
    let (Ok(ends), Some(given)) = (ends.parse(), bytes(digits)) else {
        return false;
    };
    // Compared in a time that says nothing about the secret.
    let fits = |cookie| {
        hash(secret, cookie, action, key, fence, ends)
            .verify_slice(&given)
            .is_ok()
    };
    ends > now() && cookies::named(request, COOKIE).any(fits)
}

fn hash(secret: &[u8; 32], cookie: &str, action: &str, key: &str, fence: i64, ends: u64) -> Hmac<Sha256> {
    let mut hash = Hmac::<Sha256>::new_from_slice(secret).expect("a secret of any length will do");
    // None of them but the key can contain a NUL, and a key has none.
    hash.update(format!("{ends}\0{fence}\0{action}\0{cookie}\0{key}").as_bytes());
    hash
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2).map(std::str::from_utf8);
    pairs
        .map(|pair| u8::from_str_radix(pair.ok()?, 16).ok())
        .collect()
}

/// Seconds since the epoch.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    const SECRET: [u8; 32] = [7; 32];

    fn from(cookie: &str) -> Parts {
        let request = Request::post("/revoke").header("cookie", cookie);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_token_is_good_for_one_thing_from_one_browser() {
        let token = make(&SECRET, "abc", "revoke", "order:1", 7);
        let ours = from("x=1; dblock_page=other; dblock_page=abc");
        assert!(fits(&SECRET, &ours, "revoke", "order:1", 7, &token));
        assert!(!fits(&SECRET, &ours, "revoke", "order:2", 7, &token));
        assert!(!fits(&SECRET, &ours, "force-release", "order:1", 7, &token));
        assert!(!fits(&SECRET, &ours, "revoke", "order:1", 8, &token));
        assert!(!fits(&[8; 32], &ours, "revoke", "order:1", 7, &token));
        for cookie in ["", "dblock_page=abd", "dblock_page", "x_dblock_page=abc"] {
            assert!(
                !fits(&SECRET, &from(cookie), "revoke", "order:1", 7, &token),
                "{cookie}"
            );
        }
        for bad in [
            "",
            ".",
            "1.",
            "x.ab",
            "99999999999.zz",
            "99999999999.é",
            &token[..token.len() - 1],
        ] {
            assert!(!fits(&SECRET, &ours, "revoke", "order:1", 7, bad), "{bad}");
        }
    }

    #[test]
    fn a_token_ends() {
        let ours = from("dblock_page=abc");
        for (ends, good) in [(now() - 1, false), (now() + 60, true)] {
            let hash = hash(&SECRET, "abc", "revoke", "k", 7, ends)
                .finalize()
                .into_bytes();
            let digits: Vec<_> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            let token = format!("{ends}.{}", digits.concat());
            assert_eq!(fits(&SECRET, &ours, "revoke", "k", 7, &token), good);
        }
    }

    #[test]
    fn a_browser_keeps_its_cookie() {
        assert_eq!(cookie(&from("dblock_page=abc")), ("abc".to_owned(), None));
        let (fresh, set) = cookie(&from(""));
        assert!(set.is_some_and(|set| set.starts_with(&format!("dblock_page={fresh}; HttpOnly"))));
    }
}

//! Texts, lengths and addresses as the page shows them.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};

use dblock::store::clock::Timestamp;
use dblock_core::printable::printable;

/// Text of others, such as a key. maud escapes markup, and `bdi` keeps right-to-left text to itself.
pub(crate) fn foreign(text: &str) -> Markup {
    html! { bdi { (printable(text)) } }
}

/// The address of a page beside this one. Empty values are left out.
pub(crate) fn address(page: &str, query: &[(&str, &str)]) -> String {
    let given = query.iter().filter(|(_, value)| !value.is_empty());
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(given)
        .finish();
    if query.is_empty() {
        return page.to_owned();
    }
    format!("{page}?{query}")
}

/// A length of time in whole seconds.
pub(crate) fn length(length: Duration) -> String {
    humantime::format_duration(Duration::from_secs(length.as_secs())).to_string()
}

/// The end of the year 9999: no later moment can be written.
const LATEST: Timestamp = Timestamp::from_micros(253_402_300_799_999_999);

/// A moment on the store's clock.
pub(crate) fn moment(at: Timestamp) -> Markup {
    let at = SystemTime::from(at.min(LATEST));
    let exact = humantime::format_rfc3339_millis(at).to_string();
    let shown = humantime::format_rfc3339_seconds(at)
        .to_string()
        .replace('T', " ")
        .replace('Z', " UTC");
    html! { time datetime=(exact) { (shown) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_markup_or_invisible() {
        let shown = foreign("<script>a&\"\u{202e}\r\n\u{7f}é").into_string();
        assert_eq!(
            shown,
            "<bdi>&lt;script&gt;a&amp;&quot;\\u{202e}\\r\\n\\u{7f}é</bdi>"
        );
    }

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(address("list", &[("prefix", "")]), "list");
        assert_eq!(
            address("key", &[("key", "a&b=\"ü\r"), ("x", "1")]),
            "key?key=a%26b%3D%22%C3%BC%0D&x=1"
        );
    }

    #[test]
    fn times_are_short() {
        assert_eq!(length(Duration::from_micros(5)), "0s");
        assert_eq!(length(Duration::from_micros(3_661_999_999)), "1h 1m 1s");
        assert_eq!(
            moment(Timestamp::from_micros(1_763_800_000_123_456)).into_string(),
            "<time datetime=\"2025-11-22T08:26:40.123Z\">2025-11-22 08:26:40 UTC</time>"
        );
        let last = Timestamp::from_micros(i64::MAX);
        assert_eq!(moment(LATEST).into_string(), moment(last).into_string());
    }
}

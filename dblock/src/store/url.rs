//! What the URLs of servers have in common.

use super::connect_options::OptionsSource;
use super::sql_error::NO_TLS;
use crate::LockError;

/// The servers of a URL: one, or several with commas between their addresses, which differ in nothing else.
pub(super) fn servers<O>(store: &str, url: &str) -> Result<Vec<OptionsSource<O>>, LockError>
where
    O: std::str::FromStr<Err = sqlx::Error> + Clone + Send + Sync + 'static,
{
    let (before, addresses, after) = around_addresses(url);
    if !addresses.contains(',') {
        return Ok(vec![OptionsSource::fixed(parsed(store, url)?)]);
    }
    let server = |address: &str| {
        if address.is_empty() {
            let message =
                format!("an address is missing in the {store} URL, at one of the commas between servers");
            return Err(LockError::invalid(message));
        }
        let options = parsed(store, &format!("{before}{address}{after}"))?;
        Ok(OptionsSource::fixed(options).of_server(address))
    };
    addresses.split(',').map(server).collect()
}

/// The options that the driver reads from a URL.
fn parsed<O: std::str::FromStr<Err = sqlx::Error>>(store: &str, url: &str) -> Result<O, LockError> {
    url.parse()
        .map_err(|error| LockError::invalid(format!("the {store} URL cannot be read: {error}")))
}

/// The drivers ignore parameters that they do not know. Ignoring one that asks for TLS, such as a mistyped
/// `sslmode`, would send passwords in clear text. `known` are those about TLS.
pub(super) fn check_tls(store: &str, url: &str, known: &[&str]) -> Result<(), LockError> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split('#').next().unwrap_or_default();
    for parameter in query.split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let lower = name.to_ascii_lowercase();
        let is_word = lower
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        if is_word && !known.contains(&name) && (lower.contains("ssl") || lower.contains("tls")) {
            return Err(LockError::invalid(format!(
                "the {store} URL has the parameter {name:?}, which is not known, so it would not be obeyed; those about TLS \
                 are {}",
                known.join(", ")
            )));
        }
        let demands = value.starts_with(['r', 'v', 'R', 'V']) && matches!(name, "sslmode" | "ssl-mode");
        if demands && cfg!(not(any(feature = "tls-rustls", feature = "tls-native-tls"))) {
            return Err(LockError::invalid(format!(
                "{name}={value} in the {store} URL {NO_TLS}"
            )));
        }
    }
    Ok(())
}

/// Splits a URL around the addresses of its servers: what is before them may contain a user and a password.
fn around_addresses(url: &str) -> (&str, &str, &str) {
    let scheme = url.find("://").map_or(url.len(), |colon| colon + 3);
    let end = url[scheme..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |end| scheme + end);
    let begin = url[scheme..end].rfind('@').map_or(scheme, |at| scheme + at + 1);
    (&url[..begin], &url[begin..end], &url[end..])
}

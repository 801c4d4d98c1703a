//! The addresses of members, as a program gives them.

use std::net::Ipv6Addr;

use dblock_core::LockError;
use percent_encoding::percent_decode_str;
use tonic::transport::Uri;

pub(crate) const HTTP: &str = "http://";
pub(crate) const HTTPS: &str = "https://";

/// The addresses, each of which can be one. No message repeats it, because it may contain a password.
pub(crate) fn checked<A: Into<String>>(
    addresses: impl IntoIterator<Item = A>,
) -> Result<Vec<String>, LockError> {
    let addresses: Vec<String> = addresses.into_iter().map(Into::into).collect();
    if addresses.is_empty() {
        return Err(LockError::invalid("no address of an etcd member was given"));
    }
    if !addresses.iter().all(|address| is_address(address)) {
        return Err(LockError::invalid(
            "the address of an etcd member cannot be used: write it as http://host:2379 or https://host:2379; the user is given \
             to `EtcdStore::user`",
        ));
    }
    if has(&addresses, HTTPS) && has(&addresses, HTTP) {
        return Err(LockError::invalid(
            "some addresses of etcd's members begin with https:// and some with http://: give all of them the same beginning",
        ));
    }
    if has(&addresses, HTTPS) && cfg!(not(feature = "tls-rustls")) {
        return Err(LockError::invalid(
            "addresses with https:// need the feature `tls-rustls` of dblock-etcd",
        ));
    }
    Ok(addresses)
}

/// The parts of a URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) addresses: Vec<String>,
    pub(crate) user: Option<(String, String)>,
    pub(crate) prefix: Option<String>,
}

/// Reads `etcd://user:password@one:2379,two:2379/prefix`. The error does not repeat the URL, which may have a password.
pub(crate) fn read(url: &str) -> Result<Parts, LockError> {
    let unreadable = |reason: &str| {
        LockError::invalid(format!(
            "the etcd URL cannot be read: {reason}; write it as etcd://user:password@etcd-1:2379,etcd-2:2379/prefix"
        ))
    };
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let scheme = match &*scheme.to_ascii_lowercase() {
        "etcd" => HTTP,
        "etcds" => HTTPS,
        _ => return Err(unreadable("it begins neither with etcd:// nor with etcds://")),
    };
    if rest.contains(['?', '#']) {
        return Err(unreadable("it has no options"));
    }
    let decoded = |part: &str| {
        let part = percent_decode_str(part).decode_utf8();
        part.ok().filter(|part| !part.is_empty()).map(String::from)
    };
    let (user, rest) = match rest.rsplit_once('@') {
        None => (None, rest),
        Some((user, rest)) => {
            let parts = user
                .split_once(':')
                .and_then(|(name, password)| Some((decoded(name)?, decoded(password)?)));
            let user = parts.ok_or_else(|| unreadable("a user needs a name and a password"))?;
            (Some(user), rest)
        }
    };
    let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = match prefix {
        "" => None,
        prefix => Some(decoded(prefix).ok_or_else(|| unreadable("its prefix is no text"))?),
    };
    Ok(Parts {
        addresses: hosts.split(',').map(|host| format!("{scheme}{host}")).collect(),
        user,
        prefix,
    })
}

/// Whether an address begins with this.
pub(crate) fn has(addresses: &[String], scheme: &str) -> bool {
    addresses.iter().any(|address| address.starts_with(scheme))
}

/// Whether TLS can be spoken so with these addresses.
#[cfg(feature = "tls-rustls")]
pub(crate) fn check_tls(addresses: &[String], tls: &etcd_client::TlsOptions) -> Result<(), LockError> {
    if has(addresses, HTTP) {
        return Err(LockError::invalid(
            "the addresses of etcd's members begin with http://, without TLS: write them with https://",
        ));
    }
    let any = tonic::transport::Endpoint::from_static("https://localhost");
    any.tls_config(tls.clone()).map(drop).map_err(|error| {
        let causes = dblock_core::store::with_causes(error.to_string(), std::error::Error::source(&error));
        LockError::invalid(format!(
            "the certificates or the key for etcd cannot be used: {causes}"
        ))
    })
}

fn is_address(address: &str) -> bool {
    let rest = [HTTP, HTTPS]
        .iter()
        .find_map(|scheme| address.strip_prefix(scheme));
    // As the client reads it, which takes an address without a scheme, too.
    let Ok(uri) = format!("http://{}", rest.unwrap_or(address)).parse::<Uri>() else {
        return false;
    };
    let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else {
        return false;
    };
    let is_host = match host.strip_prefix('[') {
        Some(host) => host
            .strip_suffix(']')
            .is_some_and(|host| host.parse::<Ipv6Addr>().is_ok()),
        None => {
            !host.is_empty()
                && host
                    .chars()
                    .all(|letter| letter.is_ascii_alphanumeric() || ".-_".contains(letter))
        }
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    // A user would stand before the host.
    let port = authority.as_str().strip_prefix(host);
    let is_port = port.is_some_and(|port| port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    is_host && is_port && uri.path() == "/" && uri.query().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_a_host_and_perhaps_a_port() {
        for address in [
            "http://etcd-1:2379",
            "http://etcd-1.local:2379/",
            "etcd_1:2379",
            "http://[::1]:2379",
            "http://[::1]",
            "http://10.0.0.1",
        ] {
            assert!(checked([address]).is_ok(), "{address}");
        }
    }

    #[test]
    fn a_url_names_members_user_and_prefix() {
        let parts = read("etcd://us%40er:pass@one:2379,[::1]:2379/app/locks").unwrap();
        let expected = Parts {
            addresses: vec!["http://one:2379".to_owned(), "http://[::1]:2379".to_owned()],
            user: Some(("us@er".to_owned(), "pass".to_owned())),
            prefix: Some("app/locks".to_owned()),
        };
        assert_eq!(parts, expected);
        let parts = read("etcds://one").unwrap();
        assert_eq!(
            (parts.addresses, parts.prefix),
            (vec!["https://one".to_owned()], None)
        );
        for url in [
            "http://one",
            "etcd://hush@one",
            "etcd://user:@one",
            "etcd://one?db=hush",
            "etcd://one/hush%FF",
        ] {
            let refused = read(url).unwrap_err().to_string();
            assert!(
                refused.contains("etcd://user:password@") && !refused.contains("hush"),
                "{refused}"
            );
        }
    }

    #[test]
    fn all_addresses_have_tls_or_none_has() {
        assert!(checked(["https://one:2379", "two:2379"]).is_ok() == cfg!(feature = "tls-rustls"));
        let both = checked(["https://one:2379", "http://two:2379"]).unwrap_err();
        assert!(both.to_string().contains("the same beginning"), "{both}");
    }

    #[test]
    fn what_cannot_be_an_address_is_refused_without_its_password() {
        for address in [
            "",
            "http://",
            "http://:2379",
            "http://hush:0",
            "http://hush:70000",
            "http://hush:port",
            "redis://hush:2379",
            "http://user:hush@etcd-1:2379",
            "http://hush:2379/v3",
            "http://hush:2379?a=b",
            "http://[hush]:2379",
            "http://[::1",
            "HTTP://hush:2379",
            "http://one:2379,hush:2379",
            "a hush",
        ] {
            let error = checked(["http://etcd-1:2379", address]).unwrap_err();
            assert!(matches!(error, LockError::Invalid { .. }), "{address}: {error:?}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
        let none = checked(Vec::<String>::new()).unwrap_err();
        assert!(none.to_string().contains("no address"), "{none}");
    }
}

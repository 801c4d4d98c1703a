//! The addresses of members, as a program gives them.

use dblock_core::LockError;

/// The addresses, each of which can be one. No message repeats it, because it may contain a password.
pub(crate) fn checked<A: Into<String>>(
    addresses: impl IntoIterator<Item = A>,
) -> Result<Vec<String>, LockError> {
    let addresses: Vec<String> = addresses.into_iter().map(Into::into).collect();
    if addresses.is_empty() {
        return Err(LockError::invalid("no address of an etcd member was given"));
    }
    if addresses.iter().all(|address| is_address(address)) {
        return Ok(addresses);
    }
    Err(LockError::invalid(
        "the address of an etcd member cannot be used: write it as http://host:2379; the user is given to `EtcdStore::user`",
    ))
}

fn is_address(address: &str) -> bool {
    let schemes = ["http://", "https://"];
    let rest = schemes.iter().find_map(|scheme| address.strip_prefix(scheme));
    let rest = rest.unwrap_or(address);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.rsplit_once(':') {
        // Of an address in brackets.
        Some((_, port)) if port.ends_with(']') => (rest, None),
        Some((host, port)) => (host, Some(port)),
        None => (rest, None),
    };
    let (name, letters) = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(name) => (name, ":.%-_"),
        None => (host, ".-_"),
    };
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letters.contains(letter);
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    !name.is_empty() && name.chars().all(is_letter) && port.is_none_or(is_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_a_host_and_perhaps_a_port() {
        for address in [
            "http://etcd-1:2379",
            "https://etcd-1.local:2379/",
            "etcd_1:2379",
            "http://[::1]:2379",
            "http://[::1]",
            "http://10.0.0.1",
        ] {
            assert!(checked([address]).is_ok(), "{address}");
        }
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

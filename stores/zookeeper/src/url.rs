//! Reading URLs.

use dblock_core::LockError;
use percent_encoding::percent_decode_str;

/// The node that everything is below, where the URL names none.
const ROOT: &str = "/dblock";

const SCHEME: &str = "zookeeper://";

/// The parts of a URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The servers, as ZooKeeper's clients write them: `one:2181,two:2181`.
    pub(crate) hosts: String,
    /// `user:password`.
    pub(crate) user: Option<String>,
    /// The node that everything is below.
    pub(crate) root: String,
}

/// Reads `zookeeper://user:password@one:2181,two:2181/node`. The error does not repeat the URL, which may
/// have a password.
pub(crate) fn read(url: &str) -> Result<Parts, LockError> {
    let rest = url
        .strip_prefix(SCHEME)
        .ok_or_else(|| unreadable("it does not begin with `zookeeper://`"))?;
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (Some(self::user(user)?), rest),
        None => (None, rest),
    };
    if rest.contains(['?', '#']) {
        return Err(unreadable("it has no options"));
    }
    let (hosts, node) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    for host in hosts.split(',') {
        let (name, port) = match host.rsplit_once(':') {
            // Of an address in brackets.
            Some((_, port)) if port.ends_with(']') => (host, "2181"),
            Some((name, port)) => (name, port),
            None => (host, "2181"),
        };
        if name.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(unreadable(
                "a host is missing, or its port is no number from 1 to 65535",
            ));
        }
    }
    let root = match node.trim_end_matches('/') {
        "" => ROOT,
        node => node,
    };
    let good = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        part.bytes().all(allowed) && part.bytes().any(|byte| byte != b'.')
    };
    if !root[1..].split('/').all(good) || root == "/zookeeper" || root.starts_with("/zookeeper/") {
        return Err(unreadable(
            "the node's name may have letters, digits, `-`, `_`, `.` and `:`, and must not be `zookeeper`, which is ZooKeeper's own",
        ));
    }
    Ok(Parts {
        hosts: hosts.to_owned(),
        user,
        root: root.to_owned(),
    })
}

fn user(text: &str) -> Result<String, LockError> {
    let decoded = |part| {
        percent_decode_str(part)
            .decode_utf8()
            .ok()
            .filter(|part| !part.is_empty())
    };
    let parts = text
        .split_once(':')
        .and_then(|(user, password)| Some(format!("{}:{}", decoded(user)?, decoded(password)?)));
    parts.ok_or_else(|| unreadable("a user needs a name and a password: `zookeeper://user:password@…`"))
}

fn unreadable(reason: &str) -> LockError {
    let message = format!(
        "the URL cannot be read: {reason}. Write `zookeeper://one:2181,two:2181,three:2181`, with all servers of the \
         ensemble, or `zookeeper://…/node` for other nodes than those below `{ROOT}`"
    );
    LockError::invalid(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_servers_a_user_and_a_node() {
        let parts = |hosts: &str, user: Option<&str>, root: &str| Parts {
            hosts: hosts.to_owned(),
            user: user.map(str::to_owned),
            root: root.to_owned(),
        };
        for (url, expected) in [
            ("zookeeper://one", parts("one", None, "/dblock")),
            (
                "zookeeper://one:1,[::1]:2/",
                parts("one:1,[::1]:2", None, "/dblock"),
            ),
            ("zookeeper://[::1]", parts("[::1]", None, "/dblock")),
            (
                "zookeeper://u:p%40%3A@one/a/b.c",
                parts("one", Some("u:p@:"), "/a/b.c"),
            ),
        ] {
            assert_eq!(read(url).unwrap(), expected, "{url}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_without_its_password() {
        for url in [
            "redis://u:hush@one",
            "zookeeper://",
            "zookeeper://u:hush@",
            "zookeeper://u:hush@one:0",
            "zookeeper://u:hush@one:70000",
            "zookeeper://u:hush@one,,two",
            "zookeeper://hush@one",
            "zookeeper://u:hush@one?x=1",
            "zookeeper://u:hush@one:2181?x=1/node",
            "zookeeper://u:hush@one#node",
            "zookeeper://:hush@one",
            "zookeeper://u:hush@one/a b",
            "zookeeper://u:hush@one/a//b",
            "zookeeper://u:hush@one/..",
            "zookeeper://u:hush@one/zookeeper/x",
        ] {
            let error = read(url).unwrap_err();
            assert!(matches!(error, LockError::Invalid { .. }), "{url}: {error:?}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}

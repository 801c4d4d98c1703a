//! Reads a URL. No message repeats it, because it may contain a password.

use std::sync::Arc;

use dblock_core::store::{StoreError, StoreErrorKind};

use crate::certificates::Certificates;
use crate::login::{Login, Target, with_port};
use crate::sentinel::Sentinels;

/// How many shards a cluster's locks have where the URL does not say it.
const SHARDS: u16 = 16;

/// The most shards: more would only make batches smaller.
const MOST_SHARDS: u16 = 256;

/// The server, or the servers, that a URL leads to.
#[derive(Debug)]
pub(crate) enum Place {
    Server(Target),
    Sentinels(Arc<Sentinels>),
    Cluster {
        login: Login,
        seeds: Vec<String>,
        shards: u16,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Server,
    Sentinel,
    Cluster,
}

/// The options that are the same for all kinds of server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Common {
    pub(crate) prefix: Option<String>,
    pub(crate) certificates: Certificates,
}

/// The place, and the other options of the URL.
pub(crate) fn read(url: &str) -> Result<(Place, Common), StoreError> {
    if url.contains('#') {
        return Err(refuse(
            "the URL has a `#`, and nothing behind it would be read; write %23 in a password",
        ));
    }
    let (url, common) = without_common(url)?;
    let place = place(&url)?;
    let Certificates { certificate, key, .. } = &common.certificates;
    if !common.certificates.are_none() && !is_secure(&url) {
        return Err(refuse(
            "the URL names certificates, which are for TLS: write rediss://… or valkeys://…",
        ));
    }
    if certificate.is_some() != key.is_some() {
        return Err(refuse(
            "the URL names a certificate without a key, or a key without a certificate: give both, as `certificate` and `key`",
        ));
    }
    Ok((place, common))
}

/// Takes the options out of a URL that are the same for all kinds of server.
fn without_common(url: &str) -> Result<(String, Common), StoreError> {
    let mut common = Common::default();
    let Some((address, query)) = url.rsplit_once('?') else {
        return Ok((url.to_owned(), common));
    };
    let mut others = Vec::new();
    for option in query.split('&') {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let place = match name {
            "prefix" => &mut common.prefix,
            "ca" => &mut common.certificates.authorities,
            "certificate" => &mut common.certificates.certificate,
            "key" => &mut common.certificates.key,
            _ => {
                others.push(option);
                continue;
            }
        };
        if value.is_empty() || value.contains('%') {
            return Err(refuse(&format!(
                "the URL's option `{name}` must be a name without characters that a URL has to encode"
            )));
        }
        if place.replace(value.to_owned()).is_some() {
            return Err(refuse(&format!("the URL has the option `{name}` more than once")));
        }
    }
    let joint = if others.is_empty() { "" } else { "?" };
    Ok((format!("{address}{joint}{}", others.join("&")), common))
}

fn is_secure(url: &str) -> bool {
    let scheme = url.to_ascii_lowercase();
    scheme.starts_with("rediss") || scheme.starts_with("valkeys")
}

fn place(url: &str) -> Result<Place, StoreError> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let (protocol, form) = scheme_of(scheme)?;
    if protocol == "rediss" {
        secure()?;
    }
    let (user, address) = rest.rsplit_once('@').unwrap_or(("", rest));
    let (address, query) = address.split_once('?').unwrap_or((address, ""));
    let (hosts, path) = address.split_once('/').unwrap_or((address, ""));
    match form {
        Form::Server if hosts.contains(',') => Err(refuse(
            "the URL names several servers: write redis+sentinel://… for Sentinels, or redis+cluster://… for a cluster",
        )),
        Form::Server => server(scheme, url),
        Form::Sentinel => sentinels(protocol, user, hosts, path, query),
        Form::Cluster => cluster(protocol, user, hosts, path, query),
    }
}

/// The protocol without what comes after it, and what the URL leads to.
fn scheme_of(scheme: &str) -> Result<(&'static str, Form), StoreError> {
    let scheme = scheme.to_ascii_lowercase();
    if scheme.is_empty() {
        return Err(refuse(
            "the URL has no scheme; write redis://…, rediss://… or valkey://…",
        ));
    }
    let (protocol, form) = scheme.split_once(['+', '-']).unwrap_or((&scheme, ""));
    let protocol = match protocol {
        "redis" | "valkey" => Some("redis"),
        "rediss" | "valkeys" => Some("rediss"),
        _ => None,
    };
    match (protocol, form) {
        (Some(protocol), "") => Ok((protocol, Form::Server)),
        (Some("redis"), "unix") => Ok(("redis", Form::Server)),
        (Some(protocol), "sentinel") => Ok((protocol, Form::Sentinel)),
        (Some(protocol), "cluster") => Ok((protocol, Form::Cluster)),
        // The text before the first colon may be a password where somebody has forgotten the scheme.
        _ => Err(refuse(
            "the URL's scheme is none of redis, rediss, valkey, redis+unix, redis+sentinel, redis+cluster",
        )),
    }
}

/// The options are those that the redis crate reads. It takes no notice of others: with `?db=3` database 0 would be
/// used, where somebody has meant another one.
fn server(scheme: &str, url: &str) -> Result<Place, StoreError> {
    let known: &[&str] = if scheme.to_ascii_lowercase().ends_with("unix") {
        &["db", "user", "pass", "protocol"]
    } else {
        &["protocol"]
    };
    let (_, query) = url.rsplit_once('?').unwrap_or_default();
    let unknown = |(option, _): &(&str, &str)| !known.contains(option);
    if options(query)?.iter().any(unknown) {
        return Err(unknown_option(&known.join(", ")));
    }
    Target::of(url).map(Place::Server)
}

/// `redis+sentinel://user:password@sentinel:26379,…/name/database?sentinel_username=…&sentinel_password=…`
fn sentinels(protocol: &str, user: &str, hosts: &str, path: &str, query: &str) -> Result<Place, StoreError> {
    let (name, database) = path.split_once('/').unwrap_or((path, ""));
    if name.is_empty() {
        return Err(refuse(
            "the URL does not say which primary the Sentinels watch: redis+sentinel://sentinel:26379/NAME, where NAME is \
             that of `sentinel monitor` in their settings, often mymaster",
        ));
    }
    let (mut sentinel_user, mut password) = ("", "");
    for (option, value) in options(query)? {
        match option {
            "sentinel_username" => sentinel_user = value,
            "sentinel_password" => password = value,
            _ => return Err(unknown_option("sentinel_username and sentinel_password")),
        }
    }
    let primary = Login::new(protocol, user, database);
    let user = match (sentinel_user, password) {
        ("", "") => String::new(),
        (user, password) => format!("{user}:{password}"),
    };
    let sentinel = Login::new(protocol, &user, "");
    let addresses = addresses(hosts, 26_379, &sentinel)?;
    let sentinels = Sentinels::new(name, sentinel, addresses, primary)?;
    Ok(Place::Sentinels(Arc::new(sentinels)))
}

/// `redis+cluster://user:password@node:6379,…?shards=16`
fn cluster(protocol: &str, user: &str, hosts: &str, path: &str, query: &str) -> Result<Place, StoreError> {
    if !matches!(path, "" | "0") {
        return Err(refuse(
            "a cluster has database 0 only: leave out what is behind the last address",
        ));
    }
    let mut shards = SHARDS;
    for (option, value) in options(query)? {
        shards = match (option, value.parse()) {
            ("shards", Ok(number @ 1..=MOST_SHARDS)) => number,
            ("shards", _) => {
                return Err(refuse(&format!(
                    "the URL's option `shards` must be a number from 1 to {MOST_SHARDS}"
                )));
            }
            _ => return Err(unknown_option("shards")),
        };
    }
    let login = Login::new(protocol, user, "");
    let seeds = addresses(hosts, 6_379, &login)?;
    Ok(Place::Cluster { login, seeds, shards })
}

/// The addresses that are separated by commas. Each can be read.
fn addresses(hosts: &str, port: u16, login: &Login) -> Result<Vec<String>, StoreError> {
    let addresses: Vec<_> = hosts.split(',').map(|host| with_port(host, port)).collect();
    for address in &addresses {
        login.at(address)?;
    }
    Ok(addresses)
}

/// The options, each once.
fn options(query: &str) -> Result<Vec<(&str, &str)>, StoreError> {
    let mut options: Vec<(&str, &str)> = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let Some((name, value)) = option.split_once('=') else {
            return Err(refuse("an option of the URL has no value"));
        };
        if options.iter().any(|(other, _)| *other == name) {
            return Err(refuse("the URL has an option more than once"));
        }
        options.push((name, value));
    }
    Ok(options)
}

fn unknown_option(known: &str) -> StoreError {
    refuse(&format!(
        "the URL has an option that this kind of server does not know; it knows {known}"
    ))
}

fn refuse(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unsupported, message)
}

/// rustls needs a choice of who encrypts. The program makes it, or else we do.
#[cfg(feature = "tls-rustls")]
#[allow(clippy::unnecessary_wraps, reason = "without the feature it fails")]
pub(crate) fn secure() -> Result<(), StoreError> {
    // Fails when there is a choice already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(())
}

#[cfg(not(feature = "tls-rustls"))]
pub(crate) fn secure() -> Result<(), StoreError> {
    Err(refuse(
        "TLS is not compiled in; write `dblock-redis = { version = \"…\", features = [\"tls-rustls\"] }` in Cargo.toml",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_and_valkey_are_place() {
        for url in [
            "redis://localhost",
            "valkey://user:word@localhost:6380/3",
            "REDIS://[::1]:6379",
            "redis+unix:///run/redis.sock?db=2",
        ] {
            assert!(matches!(place(url), Ok(Place::Server(_))), "{url}");
        }
        assert_eq!(place("rediss://localhost").is_ok(), cfg!(feature = "tls-rustls"));
    }

    #[test]
    fn a_url_of_sentinels_names_the_primary() {
        let url = "redis+sentinel://u:hush@a,b:1,[::1]:2/main/3?sentinel_username=s&sentinel_password=h%40sh";
        let Ok(Place::Sentinels(found)) = place(url) else {
            panic!("{:?}", place(url));
        };
        let shown = format!("{found:?}");
        assert!(shown.contains(r#""a:26379", "b:1", "[::1]:2""#), "{shown}");
        assert!(shown.contains("main") && !shown.contains("sh\""), "{shown}");
        assert!(matches!(
            place("valkey-sentinel://a/main"),
            Ok(Place::Sentinels(_))
        ));
    }

    #[test]
    fn a_url_of_a_cluster_says_how_many_shards() {
        for (url, expected) in [
            ("redis+cluster://a,b:1", SHARDS),
            ("valkey+cluster://:hush@a:1/0?shards=3", 3),
        ] {
            let Ok(Place::Cluster { shards, seeds, .. }) = place(url) else {
                panic!("{:?}", place(url));
            };
            assert_eq!(shards, expected);
            assert!(!seeds.is_empty());
        }
    }

    #[test]
    fn common_options_are_taken_out() {
        let common = |prefix: Option<&str>, authorities: Option<&str>| Common {
            prefix: prefix.map(str::to_owned),
            certificates: Certificates {
                authorities: authorities.map(str::to_owned),
                ..Certificates::default()
            },
        };
        for (given, left, expected) in [
            ("redis://a?prefix=x", "redis://a", common(Some("x"), None)),
            (
                "rediss://a/1?ca=/x.pem&protocol=resp3&prefix=x",
                "rediss://a/1?protocol=resp3",
                common(Some("x"), Some("/x.pem")),
            ),
            (
                "redis://a?protocol=resp3",
                "redis://a?protocol=resp3",
                common(None, None),
            ),
            ("redis://a", "redis://a", common(None, None)),
        ] {
            assert_eq!(
                without_common(given).unwrap(),
                (left.to_owned(), expected),
                "{given}"
            );
        }
        for bad in [
            "redis://a?prefix=",
            "redis://a?prefix",
            "redis://a?prefix=a%20b",
            "redis://a?prefix=a&prefix=b",
            "rediss://a?ca=a&ca=b",
        ] {
            assert!(without_common(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_refused_says_why_and_repeats_no_password() {
        let refused = [
            ("user:hush@localhost", "no scheme"),
            ("hush", "no scheme"),
            ("hush://localhost", "scheme"),
            ("redis+hush://localhost", "scheme"),
            ("redis://:hush@a:1,b:2", "several servers"),
            ("redis://:hush@localhost:hush", "cannot be read"),
            ("redis://:hush@localhost/hush", "cannot be read"),
            ("redis://:hush@/0", "cannot be read"),
            ("redis://:hush@localhost?db=3", "option"),
            ("redis://:pass#hush@localhost/1", "%23"),
            ("redis+cluster://:hush@a#?shards=3", "%23"),
            ("redis://:hush@localhost/0?shards=3", "option"),
            ("redis+unix:///run/redis.sock?hush=1", "option"),
            (
                "redis://localhost?protocol=resp2&protocol=resp3",
                "more than once",
            ),
            ("redis-sentinel://:hush@a:1", "which primary"),
            ("redis+sentinel://:hush@a:1,:2/main", "cannot be read"),
            ("redis+sentinel://:hush@a/main/hush", "cannot be read"),
            ("redis+sentinel://:hush@a/main?hush=1", "option"),
            ("redis+sentinel://a/main?sentinel_password", "no value"),
            ("redis+cluster://:hush@a:hush", "cannot be read"),
            ("redis+cluster://:hush@a/1", "database 0"),
            ("redis+cluster://:hush@a?shards=0", "from 1 to 256"),
            ("redis+cluster://:hush@a?shards=hush", "from 1 to 256"),
            ("redis+cluster://:hush@a?hush=1", "option"),
            ("redis+cluster://:hush@a?shards=3&shards=4", "more than once"),
        ];
        for (url, says) in refused {
            let error = read(url).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(says), "{url}: {shown}");
            assert!(!shown.contains("hush"), "{url}: {shown}");
        }
    }
}

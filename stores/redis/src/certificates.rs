//! Certificates of one's own for TLS: the files that a URL names.

use dblock_core::store::StoreError;
#[cfg(feature = "tls-rustls")]
use redis::IntoConnectionInfo as _;
use redis::{ConnectionInfo, RedisResult};

/// The paths of files in the PEM format.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// Whom to trust, and nobody else. Without it the authorities of the system.
    pub(crate) authorities: Option<String>,
    /// Who the client is, for a server that asks.
    pub(crate) certificate: Option<String>,
    pub(crate) key: Option<String>,
}

impl Certificates {
    pub(crate) fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(feature = "tls-rustls")]
impl Certificates {
    /// Whether the files can be used now.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let checked = "rediss://localhost"
            .into_connection_info()
            .and_then(|server| self.for_server(server));
        checked.map(drop).map_err(|error| {
            let message = format!("the certificates that the URL names cannot be used: {error}");
            StoreError::new(dblock_core::store::StoreErrorKind::Unsupported, message)
        })
    }

    /// The server with these certificates. The files are read for each connection, because certificates are replaced
    /// before they expire.
    pub(crate) fn for_server(&self, server: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        if self.are_none() {
            return Ok(server);
        }
        let client = redis::Client::build_with_tls(server, self.read()?)?;
        Ok(client.get_connection_info().clone())
    }

    fn read(&self) -> RedisResult<redis::TlsCertificates> {
        let read = |path: &Option<String>| match path {
            Some(path) => std::fs::read(path)
                .map(Some)
                .map_err(|error| std::io::Error::other(format!("{path}: {error}"))),
            None => Ok(None),
        };
        let own = read(&self.certificate)?.zip(read(&self.key)?);
        Ok(redis::TlsCertificates {
            client_tls: own.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: read(&self.authorities)?,
        })
    }
}

#[cfg(not(feature = "tls-rustls"))]
#[allow(
    clippy::unnecessary_wraps,
    clippy::unused_self,
    reason = "with the feature it fails"
)]
impl Certificates {
    /// Without TLS a URL that may have certificates has been refused.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    pub(crate) fn for_server(&self, server: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        Ok(server)
    }
}

//! Certificates of one's own for TLS: the files that a URL names.

use dblock_core::store::StoreError;

use crate::login::Clients;

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
    /// What makes clients with these certificates. The files are read for each connection, because certificates are
    /// replaced before they expire.
    pub(crate) fn clients(self) -> Result<Clients, StoreError> {
        if let Err(error) = self.read() {
            let message = format!("the certificates that the URL names cannot be used: {error}");
            return Err(StoreError::new(
                dblock_core::store::StoreErrorKind::Unsupported,
                message,
            ));
        }
        Ok(Clients::new(move |server| {
            let client = self
                .read()
                .and_then(|read| redis::Client::build_with_tls(server, read));
            std::future::ready(client)
        }))
    }

    fn read(&self) -> redis::RedisResult<redis::TlsCertificates> {
        let read = |path: &Option<String>| match path {
            Some(path) => std::fs::read(path)
                .map(Some)
                .map_err(|error| std::io::Error::other(format!("{path}: {error}"))),
            None => Ok(None),
        };
        let own = read(&self.certificate)?.zip(read(&self.key)?);
        let read = redis::TlsCertificates {
            client_tls: own.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: read(&self.authorities)?,
        };
        // Finds out whether they are certificates.
        redis::Client::build_with_tls("rediss://localhost", read.clone())?;
        Ok(read)
    }
}

#[cfg(not(feature = "tls-rustls"))]
impl Certificates {
    /// Without TLS a URL that may have certificates has been refused.
    #[allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "with the feature it fails"
    )]
    pub(crate) fn clients(self) -> Result<Clients, StoreError> {
        Ok(Clients::default())
    }
}

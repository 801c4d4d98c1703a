//! The right to change locks.

use std::fmt;
use std::sync::Arc;

use axum::http::request::Parts;
use uuid::Uuid;

/// Says who may revoke and free locks on the page. Everybody who reaches the page sees it.
///
/// ```
/// use axum::http::request::Parts;
/// use dblock_web::Access;
///
/// /// Put into the request's extensions by the service's login.
/// #[derive(Clone)]
/// struct User {
///     is_operator: bool,
/// }
///
/// let operators = |request: &Parts| request.extensions.get::<User>().is_some_and(|user| user.is_operator);
/// let access = Access::manage_if(operators);
/// ```
#[derive(Clone)]
pub struct Access {
    decide: Arc<dyn Fn(&Parts) -> bool + Send + Sync>,
    pub(crate) secret: [u8; 32],
}

impl Access {
    /// Nobody may revoke or free locks.
    pub fn read_only() -> Self {
        Self::manage_if(|_| false)
    }

    /// Everybody who reaches the page may revoke and free locks.
    pub fn manage() -> Self {
        Self::manage_if(|_| true)
    }

    /// Those for whom `decide` returns `true` may revoke and free locks. It is called for each request, and
    /// again before anything is done.
    pub fn manage_if(decide: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        let [one, other] = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::into_bytes);
        let mut secret = [0; 32];
        secret[..16].copy_from_slice(&one);
        secret[16..].copy_from_slice(&other);
        Self {
            decide: Arc::new(decide),
            secret,
        }
    }

    /// The secret of the tokens in the page's forms: 32 random bytes. All nodes behind one load balancer need
    /// the same secret, because one node may make a form and another one may receive it. Default: random, and
    /// good for one node.
    #[must_use]
    pub fn secret(mut self, secret: [u8; 32]) -> Self {
        self.secret = secret;
        self
    }

    pub(crate) fn allows(&self, request: &Parts) -> bool {
        (self.decide)(request)
    }
}

/// [`Access::read_only`].
impl Default for Access {
    fn default() -> Self {
        Self::read_only()
    }
}

/// Without the secret.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

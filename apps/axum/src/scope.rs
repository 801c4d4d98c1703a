//! The callers that share the keys of a route.

use std::fmt;
use std::sync::Arc;

use axum::http::request::Parts;

/// Says which callers share the keys of a route. There is no default, because a wrong choice gives one caller
/// the answer of another: clients choose their keys, and may choose one that somebody else has used.
#[derive(Clone)]
pub struct Scope(Option<Arc<CallerOf>>);

type CallerOf = dyn Fn(&Parts) -> Option<String> + Send + Sync;

impl Scope {
    /// Each caller has keys of its own, and never gets another one's answer. `caller` names who sends the
    /// request, such as a tenant or a user, by what cannot be forged: an extension that your authentication
    /// has set, not a header that anybody may send. The name must stay the same when a request is repeated:
    /// an id, not a token that changes.
    ///
    /// A request without a caller (`None`) is answered with 500 and does not run. So the authentication must
    /// be a layer around this one, and refuse such requests itself.
    ///
    /// ```
    /// use dblock_axum::Scope;
    ///
    /// #[derive(Clone)]
    /// struct Tenant(u64);
    ///
    /// let scope = Scope::caller(|request| request.extensions.get::<Tenant>().map(|tenant| tenant.0.to_string()));
    /// ```
    pub fn caller<F>(caller: F) -> Self
    where
        F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    {
        Self(Some(Arc::new(caller)))
    }

    /// All callers share their keys: a caller that repeats the method, path, key and body of another caller
    /// gets that caller's answer. For services with one caller, or whose answers are no secret.
    pub fn everyone() -> Self {
        Self(None)
    }

    /// The caller, `None` where all share their keys.
    pub(crate) fn of(&self, request: &Parts) -> Result<Option<String>, NoCaller> {
        let Some(caller) = &self.0 else { return Ok(None) };
        caller(request).map(Some).ok_or(NoCaller)
    }
}

/// A request whose caller is not known.
pub(crate) struct NoCaller;

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Scope::caller"
        } else {
            "Scope::everyone"
        })
    }
}

//! The source of the options for a new connection. Passwords may change while a program runs, so the options
//! are fetched each time a connection is opened.

use std::error::Error;
use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use super::{StoreError, StoreErrorKind};

type Asking<O> = Pin<Box<dyn Future<Output = Result<O, Box<dyn Error + Send + Sync>>> + Send>>;

/// A source of options of type `O` for each new connection. Clones share the source.
pub(crate) struct OptionsSource<O> {
    /// Host and port, as the user wrote them. Empty if there is one server only.
    server: Arc<str>,
    ask: Arc<dyn Fn() -> Asking<O> + Send + Sync>,
    latest: Arc<Mutex<Option<O>>>,
}

impl<O: Clone + Send + Sync + 'static> OptionsSource<O> {
    pub(crate) fn fixed(options: O) -> Self {
        Self {
            latest: Arc::new(Mutex::new(Some(options.clone()))),
            ..Self::of(move || options.clone())
        }
    }

    /// The name of the server, for messages.
    pub(crate) fn of_server(mut self, name: &str) -> Self {
        self.server = name.into();
        self
    }

    pub(crate) fn server(&self) -> Arc<str> {
        Arc::clone(&self.server)
    }

    /// Options that can be read at any time, such as a pool's.
    pub(crate) fn of(current: impl Fn() -> O + Send + Sync + 'static) -> Self {
        Self::asked(move || ready(Ok::<_, std::convert::Infallible>(current())))
    }

    /// Options that must be fetched.
    pub(crate) fn asked<F, E>(ask: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<O, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self {
            server: Arc::default(),
            ask: Arc::new(move || {
                let answer = ask();
                Box::pin(async move { answer.await.map_err(Into::into) })
            }),
            latest: Arc::default(),
        }
    }

    /// The options for a connection that is about to be opened.
    pub(crate) async fn get(&self) -> Result<O, StoreError> {
        let options = (self.ask)().await.map_err(|error| {
            let message = format!("the function that gives the connect options has failed: {error}");
            StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
        })?;
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(options.clone());
        Ok(options)
    }

    /// The options of the latest connection.
    pub(crate) fn latest(&self) -> Option<O> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<O> Clone for OptionsSource<O> {
    fn clone(&self) -> Self {
        Self {
            server: Arc::clone(&self.server),
            ask: Arc::clone(&self.ask),
            latest: Arc::clone(&self.latest),
        }
    }
}

impl<O> fmt::Debug for OptionsSource<O> {
    /// The options contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptionsSource").finish_non_exhaustive()
    }
}

/// The servers' addresses, or the socket, and the database, as far as the options are known.
pub(crate) fn place<O: Clone + Send + Sync + 'static>(
    servers: &[OptionsSource<O>],
    parts: impl Fn(&O) -> (String, Option<String>),
) -> Option<String> {
    let known: Vec<_> = servers.iter().filter_map(OptionsSource::latest).collect();
    let database = parts(known.first()?).1;
    let addresses: Vec<_> = known.iter().map(|options| parts(options).0).collect();
    let database = database.map_or_else(String::new, |name| format!("/{name}"));
    Some(format!("{}{database}", addresses.join(",")))
}

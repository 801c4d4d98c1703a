//! One of our attributes on a function, and the code that it puts around the body.

use proc_macro2::{Span, TokenStream};
use syn::{Attribute, Path};

use crate::args::Args;
use crate::errors::Errors;
use crate::function::{Function, Scope};
use crate::kind::Kind;
use crate::lock::KeyCode;
use crate::once::{self, RunArgs};
use crate::output::{Output, private};
use crate::{capture, check, lock, retry};

/// An attribute that was read.
pub(crate) enum Layer {
    Lock(Box<Args>),
    Once(Box<RunArgs>),
    Retry(Box<retry::Args>),
}

impl Layer {
    /// Reads the text between the parentheses of the attribute. A missing argument is reported at
    /// `attribute`.
    pub(crate) fn parse(kind: Kind, tokens: TokenStream, attribute: Span, errors: &mut Errors) -> Self {
        match kind {
            Kind::Lock => Self::Lock(Box::new(Args::parse(tokens, attribute, errors))),
            Kind::Once => Self::Once(Box::new(RunArgs::parse(tokens, attribute, errors))),
            Kind::Retry => Self::Retry(Box::new(retry::Args::parse(tokens, errors))),
        }
    }

    /// An attribute below the one that is being expanded.
    pub(crate) fn stacked(kind: Kind, attr: &Attribute, errors: &mut Errors) -> Self {
        let tokens = match &attr.meta {
            syn::Meta::List(list) => list.tokens.clone(),
            _ => TokenStream::new(),
        };
        Self::parse(kind, tokens, attr.path().segments[0].ident.span(), errors)
    }

    pub(crate) fn krate(&self) -> &Path {
        match self {
            Self::Lock(lock) => &lock.krate,
            Self::Once(run) => &run.lock.krate,
            Self::Retry(retry) => &retry.krate,
        }
    }

    /// The reason why a function without a return type is refused.
    pub(crate) fn no_return_type(&self) -> Option<&'static str> {
        match self {
            Self::Lock(lock) => lock.on_error.is_none().then_some(check::LOCK_NEEDS_RESULT),
            Self::Once(_) => Some(once::NEEDS_RESULT),
            Self::Retry(_) => Some(retry::NEEDS_RESULT),
        }
    }

    /// Checks that this layer can be put around the body of a function with these arguments.
    pub(crate) fn check(&self, function: &Function, scope: &Scope, output: &Output, errors: &mut Errors) {
        match self {
            Self::Lock(lock) => {
                if let Some(tx) = &lock.tx {
                    check::transaction(tx, function, scope, errors);
                }
            }
            Self::Once(_) => once::result(&output.ty, errors),
            Self::Retry(_) => retry::arguments(&function.sig, errors),
        }
    }

    pub(crate) fn is_retry(&self) -> bool {
        matches!(self, Self::Retry(_))
    }

    /// The key as code. `None` for an attribute that has none.
    pub(crate) fn key(&self, scope: &Scope, errors: &mut Errors) -> Option<KeyCode> {
        let lock: &Args = match self {
            Self::Lock(lock) => lock,
            Self::Once(run) => &run.lock,
            Self::Retry(_) => return None,
        };
        Some(lock::keys(lock.keys.as_ref()?, scope, errors))
    }

    /// The code with this layer around it.
    pub(crate) fn around(
        &self,
        code: &TokenStream,
        key: Option<&KeyCode>,
        function: &Function,
        scope: &Scope,
        output: &Output,
    ) -> TokenStream {
        match self {
            Self::Lock(lock) => {
                let key = key.map(|key| &key.value);
                lock::under_lock(
                    lock,
                    key.expect("a lock without a key is a mistake"),
                    function,
                    scope,
                    output,
                    code,
                )
            }
            Self::Once(run) => {
                let key = key.map(|key| &key.value);
                let key = key.expect("a run without a key is a mistake");
                let options = run.options(&private(), function);
                lock::under_run(&run.lock, key, &options, function, output, code)
            }
            Self::Retry(retry) => {
                let arguments = capture::used(&function.sig, scope, code);
                retry::repeated(retry, function, output, &arguments, code)
            }
        }
    }
}

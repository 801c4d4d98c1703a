//! One call: from the record that it finds to the record that it leaves.

mod beginning;
mod ending;
mod in_time;

use std::fmt::Display;

use uuid::Uuid;

use self::beginning::Entered;
use super::codec::Remembered;
use super::doubt::{self, Attempted};
use super::options::RunOptions;
use super::records::read;
use super::run::{Run, current_run};
use crate::Key;
use crate::body;
use crate::manager::{Began, LockManager};
use crate::store::Record;
use crate::{LockError, RunError};

/// A call of `run_once` whose options are valid.
pub(crate) struct OnceCall<'m> {
    locks: &'m LockManager,
    /// Without the namespace.
    name: String,
    key: Key,
    options: RunOptions,
    fingerprint: Option<Uuid>,
    began: Began,
}

impl<'m> OnceCall<'m> {
    pub(crate) fn new(locks: &'m LockManager, name: &str, options: RunOptions) -> Result<Self, LockError> {
        let fingerprint = options.check()?;
        let key = locks.key(name)?;
        if current_run().is_some_and(|run| run.is_inside(locks.engine(), &key)) {
            return Err(LockError::invalid(format!(
                "the run {name:?} was called inside its own body, where it can neither run nor have a result; call it \
                 after the body, or give the inner work another key"
            )));
        }
        Ok(Self {
            locks,
            name: name.to_owned(),
            key,
            began: locks.begins(&options.lock),
            options,
            fingerprint,
        })
    }

    /// Replays, or runs `body`. The inner result is that of the body.
    pub(crate) async fn run<V, E>(
        self,
        body: impl AsyncFnOnce(Run) -> Result<V, E>,
    ) -> Result<Result<V, E>, LockError>
    where
        V: Remembered,
        E: Display,
    {
        let site = self.locks.engine().site(self.options.lock.function);
        match self.enter().await {
            Ok(Entered::Replay(record)) => {
                site.run_ended("replayed");
                self.value(&record, false).map(Ok)
            }
            Ok(Entered::Begun(hold, run, in_run)) => {
                let mut attempted = Attempted {
                    key: &self.key,
                    attempt: run.attempt(),
                    on_crash: self.options.policy.on_crash,
                    is_recorded: false,
                };
                let body = run.clone().run(body);
                let ended = body::inside(std::slice::from_ref(&hold), body).await;
                let answer = if run.has_entered() {
                    let returned = |returned: std::thread::Result<Option<_>>| {
                        returned.map(|it| it.expect("it has entered"))
                    };
                    self.end(hold, &run, in_run, ended.map(returned), attempted).await
                } else {
                    // Its beginning is taken back.
                    attempted.is_recorded = true;
                    self.never_entered(hold).await
                };
                match &answer {
                    Ok(Ok(_)) => site.run_ended("ran"),
                    Ok(Err(_)) if self.is_left_in_doubt(&run) => site.run_ended("in_doubt"),
                    Ok(Err(_)) => site.run_ended("failed"),
                    Err(_) => site.run_ended("interrupted"),
                }
                answer
            }
            Err(error) => {
                match &error {
                    LockError::Run {
                        reason: RunError::InDoubt { attempt, holder, .. },
                        ..
                    } => {
                        doubt::found(&self.key, *attempt, holder);
                        site.run_ended("in_doubt");
                    }
                    LockError::Run { .. } => site.run_ended("refused"),
                    // The metrics of locks count these.
                    _ => {}
                }
                Err(error)
            }
        }
    }

    /// The result in the record of a run that succeeded.
    fn value<V: Remembered>(&self, record: &Record, ran: bool) -> Result<V, LockError> {
        match &record.result {
            Some(json) => read(&self.key, json, ran),
            None => Err(self.refused(RunError::not_stored(record.error.clone().unwrap_or_default()))),
        }
    }

    fn refused(&self, reason: RunError) -> LockError {
        LockError::run(self.key.to_typed(), reason)
    }
}

//! A process dies between any two steps of a run, and another one runs the same key afterwards. The work is
//! done by statements on the real database, so what stands can be counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dblock::store::RecordState;
use dblock::{LockError, LockManager, LockOptions, OnCrash, Run, RunError, RunOptions};
use dblock_conformance::Fixture;
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};
use tokio::task::JoinSet;

use crate::complete::{times, with_work, work};
use crate::mortal::Mortal;
use crate::{LONG, PayError, SHORT};

on_every_store!(databases: work_is_done_once_or_at_most_once_for_each_attempt);

/// More calls of the store than a run makes.
const CALLS: i64 = 9;

/// Where in its body a process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    BeforeTheWork,
    AfterTheWork,
    BeforeTheCommit,
    AfterTheCommit,
}

/// When a process dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    AtCall { calls: i64, carried_out: bool },
    InBody(Point),
}

#[derive(Debug, Clone, Copy)]
struct Case {
    on_crash: OnCrash,
    death: Death,
}

impl Case {
    fn all() -> Vec<Self> {
        let calls = (0..CALLS)
            .flat_map(|calls| [false, true].map(|carried_out| Death::AtCall { calls, carried_out }));
        let points = [
            Point::BeforeTheWork,
            Point::AfterTheWork,
            Point::BeforeTheCommit,
            Point::AfterTheCommit,
        ];
        let deaths: Vec<_> = calls.chain(points.map(Death::InBody)).collect();
        let modes = [OnCrash::CompleteIn, OnCrash::Retry, OnCrash::Stop];
        let cases = modes.map(|on_crash| deaths.iter().map(move |&death| Self { on_crash, death }));
        cases.into_iter().flatten().collect()
    }

    fn options(self, ttl: Duration) -> RunOptions {
        let lock = LockOptions::new().ttl(ttl).wait(LONG);
        RunOptions::new(LONG * 60, self.on_crash).lock(lock)
    }

    /// Does the work, in the transaction that completes the run or in one of its own.
    async fn body(
        self,
        backend: &Backend,
        id: &str,
        run: &Run,
        dies_at: Option<(Point, &Mortal)>,
    ) -> Result<u32, PayError> {
        let reaches = async |reached| {
            if let Some((point, process)) = dies_at
                && point == reached
            {
                process.die();
                std::future::pending::<()>().await;
            }
        };
        reaches(Point::BeforeTheWork).await;
        let mut transaction = Transaction::begin(backend).await;
        work(backend, &mut transaction, id).await;
        reaches(Point::AfterTheWork).await;
        if self.on_crash == OnCrash::CompleteIn {
            transaction.complete(run, &7).await?;
        }
        reaches(Point::BeforeTheCommit).await;
        transaction.commit().await;
        reaches(Point::AfterTheCommit).await;
        Ok(7)
    }

    /// Runs in a process that dies, if it comes to that. Whether it did.
    async fn dies(self, backend: &Backend, id: &str) -> bool {
        let (calls, carried_out, point) = match self.death {
            Death::AtCall { calls, carried_out } => (calls, carried_out, None),
            Death::InBody(point) => (i64::MAX, false, Some(point)),
        };
        let store = Mortal::around(backend.store().await, calls, carried_out);
        let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn dblock::store::Store>)
            .build_lazy()
            .unwrap();
        let dies_at = point.map(|point| (point, &**store));
        let body = async |run: Run| self.body(backend, id, &run, dies_at).await;
        let ended = tokio::select! {
            ended = locks.run_once(id, self.options(SHORT), body) => ended,
            () = store.died() => return true,
        };
        store.die();
        // A lease ends early if the machine stalls. To all others that is a crash.
        if matches!(ended, Err(PayError::Lock(LockError::Lost { .. }))) {
            return true;
        }
        assert!(point.is_none(), "{self:?}: {ended:?}");
        ended.unwrap();
        false
    }

    async fn check(self, backend: &Backend, id: &str) -> bool {
        let died = self.dies(backend, id).await;
        let locks = backend.manager().await;
        let attempts = AtomicU32::new(0);
        let body = async |run: Run| {
            attempts.store(run.attempt(), Ordering::SeqCst);
            self.body(backend, id, &run, None).await
        };
        let answer = locks.run_once(id, self.options(LONG), body).await;
        let times = times(backend, id).await;
        let record = locks.admin().record::<u32>(id).await.unwrap().unwrap().record;
        let seen = format!("{self:?}, died: {died}: {answer:?}, done {times} times, {record:?}");
        match answer {
            Err(PayError::Lock(LockError::Run {
                reason: RunError::InDoubt { .. },
                ..
            })) => {
                assert_eq!(self.on_crash, OnCrash::Stop, "{seen}");
                assert!(times <= 1 && record.state == RecordState::Processing, "{seen}");
            }
            answer => {
                assert_eq!(answer.unwrap().into_inner(), 7, "{seen}");
                assert_eq!(record.state, RecordState::Succeeded, "{seen}");
                let most = match self.on_crash {
                    OnCrash::Retry => i32::try_from(record.attempts).unwrap(),
                    _ => 1,
                };
                assert!((1..=most).contains(&times), "{seen}");
            }
        }
        died
    }
}

async fn work_is_done_once_or_at_most_once_for_each_attempt(backend: Backend) {
    with_work(&backend).await;
    let mut cases = Case::all().into_iter().enumerate();
    let (mut running, mut died, mut survived) = (JoinSet::new(), 0, 0);
    loop {
        while running.len() < 4
            && let Some((n, case)) = cases.next()
        {
            let backend = backend.clone();
            running.spawn(async move { case.check(&backend, &format!("case {n}")).await });
        }
        match running.join_next().await {
            Some(Ok(true)) => died += 1,
            Some(Ok(false)) => survived += 1,
            Some(Err(failed)) => std::panic::resume_unwind(failed.into_panic()),
            None => break,
        }
    }
    assert!(died > 24 && survived > 3, "{died} died, {survived} survived");
    backend.execute("DROP TABLE {table}_work").await;
}

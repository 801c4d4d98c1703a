//! A store that goes wrong as it is told, and writes down what it was asked.
//!
//! Put over the memory store it runs on tokio's paused time: tests of minutes take milliseconds and are
//! exact.

#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking")]

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dblock::store::{
    Action, Capabilities, MemoryStore, Outcome, Request, Store, StoreError, StoreErrorKind, StoreFuture,
};
use dblock::{InspectFilter, Key, LockManager, LockRow};
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// The fault of a request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Not carried out; answered with an error of this kind.
    Fail(StoreErrorKind),
    /// Carried out, but the reply is lost: `Interrupted`.
    ReplyLost,
    /// Carried out after so long, then answered.
    Slow(Duration),
    /// Carried out at once, answered after so long.
    SlowReply(Duration),
    /// Not carried out and never answered.
    Never,
    /// Carried out and never answered.
    Mute,
    /// `Interrupted` at once; carried out so much later.
    Late(Duration),
    /// Carried out, `Interrupted`, and carried out a second time so much later.
    Twice(Duration),
    /// Not carried out; answered with this.
    Answer(Outcome),
    /// The whole batch panics while it works.
    Panic,
    /// The whole batch panics before there is a future.
    PanicEarly,
    /// The batch is carried out, but one answer is missing.
    TooFew,
    /// The batch is carried out, but there is one answer too many.
    TooMany,
}

/// The kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `Action::Acquire`
    Acquire,
    /// `Action::Extend`
    Extend,
    /// `Action::Release`
    Release,
    /// `Action::Transfer`
    Transfer,
}

/// All of them.
pub const ALL: [Kind; 4] = [Kind::Acquire, Kind::Extend, Kind::Release, Kind::Transfer];

/// A request that the store was asked.
#[derive(Debug, Clone)]
pub struct Asked {
    /// When.
    pub at: Instant,
    /// The number of the batch that it was in.
    pub batch: usize,
    /// The key.
    pub key: Key,
    /// The lease that it was for.
    pub lease_id: Uuid,
    /// Its kind.
    pub kind: Kind,
    /// The count that it wrote.
    pub count: Option<u32>,
    /// The answer that the engine got.
    pub answer: Option<Result<Outcome, StoreErrorKind>>,
}

/// A store around another one.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    desk: Mutex<Desk>,
    asked: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Desk {
    rules: VecDeque<Rule>,
    asked: Vec<Asked>,
    batches: usize,
    open: HashSet<Key>,
    overlaps: Vec<Key>,
}

#[derive(Debug)]
struct Rule {
    kind: Kind,
    key: Option<String>,
    fault: Fault,
    times: usize,
}

impl FaultyStore {
    /// Around `inner`. Nothing goes wrong yet.
    pub fn over(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            desk: Mutex::default(),
            asked: watch::Sender::new(0),
        })
    }

    /// Around a memory store.
    pub fn memory() -> Arc<Self> {
        Self::over(Arc::new(MemoryStore::new()))
    }

    /// A manager over this store.
    pub fn manager(self: &Arc<Self>) -> LockManager {
        let store: Arc<dyn Store> = self.clone();
        LockManager::builder(store)
            .build_lazy()
            .expect("a manager starts without asking the store")
    }

    /// A manager over the same rows that nothing goes wrong for: another process.
    pub fn other_process(&self) -> LockManager {
        LockManager::builder(Arc::clone(&self.inner))
            .build_lazy()
            .expect("a manager starts without asking the store")
    }

    /// The store inside.
    pub fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rule(&self, kind: Kind, key: Option<&str>, fault: Fault, times: usize) {
        self.desk().rules.push_back(Rule {
            kind,
            key: key.map(str::to_owned),
            fault,
            times,
        });
    }

    /// The next request of this kind goes wrong. Rules apply in the order in which they were made.
    pub fn next(&self, kind: Kind, fault: Fault) {
        self.rule(kind, None, fault, 1);
    }

    /// Every request of this kind goes wrong from now on.
    pub fn always(&self, kind: Kind, fault: Fault) {
        self.rule(kind, None, fault, usize::MAX);
    }

    /// Every request of this kind for this key goes wrong from now on.
    pub fn always_for(&self, key: &str, kind: Kind, fault: Fault) {
        self.rule(kind, Some(key), fault, usize::MAX);
    }

    /// Every request goes wrong from now on.
    pub fn down(&self, fault: &Fault) {
        for kind in ALL {
            self.always(kind, fault.clone());
        }
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.desk().rules.clear();
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.desk().asked.clone()
    }

    /// The requests of one kind so far.
    pub fn asked_to(&self, kind: Kind) -> Vec<Asked> {
        self.asked()
            .into_iter()
            .filter(|asked| asked.kind == kind)
            .collect()
    }

    /// Waits until `count` requests of a kind were asked in all.
    pub async fn until_asked(&self, kind: Kind, count: usize) {
        let mut changes = self.asked.subscribe();
        while self.asked_to(kind).len() < count {
            changes.changed().await.expect("the store is still there");
        }
    }

    /// Keys for which a request was sent while another one was on its way.
    pub fn overlaps(&self) -> Vec<Key> {
        self.desk().overlaps.clone()
    }

    /// The row of a key, read past all faults.
    pub async fn row(&self, key: &str) -> Option<LockRow> {
        row(&*self.inner, key).await
    }

    fn fault_of(&self, request: &Request) -> Option<Fault> {
        let mut desk = self.desk();
        let fits = |rule: &Rule| {
            rule.kind == kind_of(request) && rule.key.as_deref().is_none_or(|key| key == request.key.as_str())
        };
        let at = desk.rules.iter().position(fits)?;
        let rule = &mut desk.rules[at];
        let fault = rule.fault.clone();
        rule.times = if rule.times == usize::MAX {
            usize::MAX
        } else {
            rule.times - 1
        };
        if rule.times == 0 {
            desk.rules.remove(at);
        }
        Some(fault)
    }

    /// Writes the batch down. Returns the place of its first request.
    fn write_down(&self, requests: &[Request]) -> usize {
        let mut desk = self.desk();
        desk.batches += 1;
        let batch = desk.batches;
        let first = desk.asked.len();
        for request in requests {
            if !desk.open.insert(request.key.clone()) {
                desk.overlaps.push(request.key.clone());
            }
            desk.asked.push(Asked {
                at: Instant::now(),
                batch,
                key: request.key.clone(),
                lease_id: request.lease_id,
                kind: kind_of(request),
                count: match &request.action {
                    Action::Extend(ask) => Some(ask.count),
                    _ => None,
                },
                answer: None,
            });
        }
        let count = desk.asked.len();
        drop(desk);
        self.asked.send_replace(count);
        first
    }

    async fn one(&self, request: &Request, fault: Option<Fault>) -> Result<Outcome, StoreError> {
        let interrupted = || {
            Err(StoreError::new(
                StoreErrorKind::Interrupted,
                "the connection broke",
            ))
        };
        match fault {
            None | Some(Fault::Panic | Fault::PanicEarly | Fault::TooFew | Fault::TooMany) => {
                ask(&*self.inner, request).await
            }
            Some(Fault::Fail(kind)) => Err(StoreError::new(kind, format!("told to fail: {kind:?}"))),
            Some(Fault::ReplyLost) => {
                let _ = ask(&*self.inner, request).await;
                interrupted()
            }
            Some(Fault::Slow(length)) => {
                sleep(length).await;
                ask(&*self.inner, request).await
            }
            Some(Fault::SlowReply(length)) => {
                let answer = ask(&*self.inner, request).await;
                sleep(length).await;
                answer
            }
            Some(Fault::Never) => std::future::pending().await,
            Some(Fault::Mute) => {
                let _ = ask(&*self.inner, request).await;
                std::future::pending().await
            }
            Some(Fault::Late(length)) => {
                self.later(request, length);
                interrupted()
            }
            Some(Fault::Twice(length)) => {
                let _ = ask(&*self.inner, request).await;
                self.later(request, length);
                interrupted()
            }
            Some(Fault::Answer(outcome)) => Ok(outcome),
        }
    }

    /// The statement of a connection that was given up arrives all the same.
    fn later(&self, request: &Request, length: Duration) {
        let (inner, request) = (Arc::clone(&self.inner), request.clone());
        tokio::spawn(async move {
            sleep(length).await;
            let _ = ask(&*inner, &request).await;
        });
    }
}

/// The row of a key, free or not.
pub async fn row(store: &dyn Store, key: &str) -> Option<LockRow> {
    let filter = InspectFilter::new().prefix(key).include_free();
    let mut tries = 0..5;
    let rows = loop {
        match store.inspect(&filter).await {
            // A machine may stall for longer than the store's patience.
            Err(error) if error.is_retryable() && tries.next().is_some() => {}
            rows => break rows.expect("the store inside can be read"),
        }
    };
    rows.into_iter().find(|row| row.key.as_str() == key)
}

async fn ask(store: &dyn Store, request: &Request) -> Result<Outcome, StoreError> {
    store.apply(std::slice::from_ref(request)).await.remove(0)
}

fn kind_of(request: &Request) -> Kind {
    match request.action {
        Action::Acquire(_) => Kind::Acquire,
        Action::Extend(_) => Kind::Extend,
        Action::Release => Kind::Release,
        Action::Transfer(_) => Kind::Transfer,
        ref other => panic!("{other:?}"),
    }
}

/// A batch on its way. However it ends, its keys are then open to others.
struct OnItsWay<'a>(&'a FaultyStore, &'a [Request]);

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        let mut desk = self.0.desk();
        for request in self.1 {
            desk.open.remove(&request.key);
        }
    }
}

impl Store for FaultyStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.immediate = false;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        let first = self.write_down(requests);
        let on_its_way = OnItsWay(self, requests);
        let faults: Vec<_> = requests.iter().map(|request| self.fault_of(request)).collect();
        let any = |test: fn(&Fault) -> bool| faults.iter().flatten().any(test);
        assert!(
            !any(|fault| matches!(fault, Fault::PanicEarly)),
            "told to panic early"
        );
        Box::pin(async move {
            let _on_its_way = on_its_way;
            let any = |test: fn(&Fault) -> bool| faults.iter().flatten().any(test);
            let (panic, few, many) = (
                any(|fault| matches!(fault, Fault::Panic)),
                any(|fault| matches!(fault, Fault::TooFew)),
                any(|fault| matches!(fault, Fault::TooMany)),
            );
            assert!(!panic, "told to panic");
            let work = requests
                .iter()
                .zip(faults.iter().cloned())
                .map(|(request, fault)| self.one(request, fault));
            let mut answers = join_all(work).await;
            for (asked, answer) in self.desk().asked[first..].iter_mut().zip(&answers) {
                asked.answer = Some(answer.clone().map_err(|error| error.kind()));
            }
            if few {
                answers.pop();
            }
            if many {
                answers.push(Ok(Outcome::Skipped));
            }
            answers
        })
    }

    dblock_conformance::forward_to_inner!();
}

//! The scenarios, and the order in which their rounds run.

mod alone;
mod attribute;
mod bloat;
mod handover;
mod held;
mod hot;
mod hot4proc;
mod keys;
mod million_rows;
mod once;
mod polling;
mod pool;
mod unit;
mod waiters;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::measure::Figures;
use crate::servers::{Place, Servers};
use crate::subject::{Kind, Subject, Use};

/// How long things are measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) quick: bool,
}

impl Pace {
    /// One of two values: for a quick run, or for a full one.
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// The needs of a round.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) servers: &'a mut Servers,
    pub(crate) pace: Pace,
    /// Distinguishes the keys of the rounds.
    pub(crate) round: usize,
    /// The pool sizes that were found to be best, by subject and tasks.
    pub(crate) pools: &'a mut BTreeMap<(Kind, usize), usize>,
}

/// The subjects on ZooKeeper and etcd, which are measured in a few scenarios only.
const COORDINATION: &[Kind] = &[
    Kind::DblockZookeeper,
    Kind::ZookeeperRecipe,
    Kind::DblockEtcd,
    Kind::EtcdRecipe,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scenario {
    Alone,
    AloneMysql,
    AloneSqlite,
    Keys16,
    Keys64,
    Keys256,
    Keys256Mysql,
    Hot64,
    Shared64,
    Limit8,
    Hot4proc,
    Handover,
    Polling,
    Waiters,
    Held,
    MillionRows,
    Bloat,
    Attribute,
    TxAlone,
    TxAlone1ms,
    TxAloneMysql,
    TxNewKeys,
    TxKeys64,
    TxHot64,
    TxHot4proc,
    TxTwo,
    TxEight,
    TxKilled,
    OnceAlone,
    OnceReplays64,
}

impl Scenario {
    pub(crate) const ALL: [Self; 30] = [
        Self::Alone,
        Self::AloneMysql,
        Self::AloneSqlite,
        Self::Keys16,
        Self::Keys64,
        Self::Keys256,
        Self::Keys256Mysql,
        Self::Hot64,
        Self::Shared64,
        Self::Limit8,
        Self::Hot4proc,
        Self::Handover,
        Self::Polling,
        Self::Waiters,
        Self::Held,
        Self::MillionRows,
        Self::Bloat,
        Self::Attribute,
        Self::TxAlone,
        Self::TxAlone1ms,
        Self::TxAloneMysql,
        Self::TxNewKeys,
        Self::TxKeys64,
        Self::TxHot64,
        Self::TxHot4proc,
        Self::TxTwo,
        Self::TxEight,
        Self::TxKilled,
        Self::OnceAlone,
        Self::OnceReplays64,
    ];

    /// The name in tables, JSON and arguments.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::AloneMysql => "alone_mysql",
            Self::AloneSqlite => "alone_sqlite",
            Self::Keys16 => "keys16",
            Self::Keys64 => "keys64",
            Self::Keys256 => "keys256",
            Self::Keys256Mysql => "keys256_mysql",
            Self::Hot64 => "hot64",
            Self::Shared64 => "shared64",
            Self::Limit8 => "limit8",
            Self::Hot4proc => "hot4proc",
            Self::Handover => "handover",
            Self::Polling => "polling",
            Self::Waiters => "waiters",
            Self::Held => "held",
            Self::MillionRows => "million_rows",
            Self::Bloat => "bloat",
            Self::Attribute => "attribute",
            Self::TxAlone => "tx_alone",
            Self::TxAlone1ms => "tx_alone_1ms",
            Self::TxAloneMysql => "tx_alone_mysql",
            Self::TxNewKeys => "tx_new_keys",
            Self::TxKeys64 => "tx_keys64",
            Self::TxHot64 => "tx_hot64",
            Self::TxHot4proc => "tx_hot4proc",
            Self::TxTwo => "tx_two",
            Self::TxEight => "tx_eight",
            Self::TxKilled => "tx_killed",
            Self::OnceAlone => "once_alone",
            Self::OnceReplays64 => "once_replays64",
        }
    }

    /// The work in a line.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Alone => "one task, one key: lock and unlock",
            Self::AloneMysql => "one task, one key, on MariaDB",
            Self::AloneSqlite => "one task, one key, on SQLite",
            Self::Keys16 => "16 tasks, each its own key",
            Self::Keys64 => "64 tasks, each its own key",
            Self::Keys256 => "256 tasks, each its own key",
            Self::Keys256Mysql => "256 tasks, each its own key, on MariaDB",
            Self::Hot64 => "64 tasks of one process on one key; times are waits",
            Self::Shared64 => "64 tasks of one process share one key",
            Self::Limit8 => "64 tasks of one process on one key, eight at once; times are waits",
            Self::Hot4proc => "4 processes with 16 tasks each on one key; times are waits",
            Self::Handover => "one waiter in another process: from release to inside",
            Self::Polling => "a process that cannot listen beside three that do, on one key; times are waits",
            Self::Waiters => "1,000 tasks wait for a key that another node holds",
            Self::Held => "10,000 leases are held and renewed",
            Self::MillionRows => "one task, one key, with a million idle rows and without",
            Self::Bloat => "one key is locked again and again: pages of 8 kB",
            Self::Attribute => "an annotated call on the memory store",
            Self::TxAlone => "one task: lock, update an order, unlock",
            Self::TxAlone1ms => "the same, each round trip to the server 1 ms longer",
            Self::TxAloneMysql => "the same on MariaDB",
            Self::TxNewKeys => "the same, each time another key, which was never locked before",
            Self::TxKeys64 => "64 tasks, each its own key and order, 16 connections",
            Self::TxHot64 => "64 tasks, one key and order, 16 connections",
            Self::TxHot4proc => "4 processes with 16 tasks each, one key and order, 16 connections each",
            Self::TxTwo => "2 processes with a task each, which never stop, one key and order",
            Self::TxEight => "8 processes with a task each, which never stop, one key and order",
            Self::TxKilled => "a process is killed in its transaction, and another one waits for the key",
            Self::OnceAlone => "one task, a new key each time: run once, or lock and unlock",
            Self::OnceReplays64 => "64 tasks, each its own key that has run: replays, or reads",
        }
    }

    /// The subjects, in the order of a round.
    pub(crate) fn subjects(self) -> impl Iterator<Item = Kind> {
        let own = match self {
            Self::Alone => alone::POSTGRES,
            Self::AloneMysql => alone::MYSQL,
            Self::AloneSqlite => alone::SQLITE,
            Self::Keys16 | Self::Keys64 | Self::Keys256 => keys::SUBJECTS,
            Self::Keys256Mysql => keys::MYSQL,
            Self::Hot64 => hot::SUBJECTS,
            Self::Shared64 => hot::SHARED,
            Self::Limit8 => hot::LIMITED,
            Self::Hot4proc => hot4proc::SUBJECTS,
            Self::Handover => handover::SUBJECTS,
            Self::Polling => polling::SUBJECTS,
            Self::Waiters => waiters::SUBJECTS,
            Self::Held => held::SUBJECTS,
            Self::MillionRows => million_rows::SUBJECTS,
            Self::Bloat => bloat::SUBJECTS,
            Self::Attribute => attribute::SUBJECTS,
            Self::TxAlone
            | Self::TxAlone1ms
            | Self::TxNewKeys
            | Self::TxKeys64
            | Self::TxHot64
            | Self::TxHot4proc => unit::POSTGRES,
            Self::TxAloneMysql => unit::MYSQL,
            Self::TxTwo | Self::TxEight => unit::LONG,
            Self::TxKilled => unit::KILLED,
            Self::OnceAlone => once::RUNS,
            Self::OnceReplays64 => once::REPLAYS,
        };
        let coordination: &[Kind] = match self {
            Self::Alone | Self::Keys64 | Self::Handover => COORDINATION,
            _ => &[],
        };
        own.iter().chain(coordination).copied()
    }

    pub(crate) fn rounds(self, pace: Pace) -> usize {
        match self {
            Self::Alone | Self::AloneMysql | Self::AloneSqlite | Self::MillionRows => pace.pick(21, 25),
            Self::Keys16 | Self::Keys64 | Self::Keys256 | Self::Keys256Mysql => pace.pick(9, 9),
            Self::Hot4proc | Self::TxHot4proc => pace.pick(3, 5),
            Self::Hot64
            | Self::Shared64
            | Self::Limit8
            | Self::Handover
            | Self::TxKeys64
            | Self::TxHot64
            | Self::OnceReplays64 => pace.pick(5, 9),
            // A difference of a few percent is looked for.
            Self::Attribute => pace.pick(15, 25),
            Self::TxAlone | Self::TxAlone1ms | Self::TxAloneMysql | Self::TxNewKeys | Self::OnceAlone => {
                pace.pick(9, 15)
            }
            Self::Polling => pace.pick(1, 3),
            // Counts of statements and pages, which noise hardly changes.
            Self::Waiters | Self::Held | Self::Bloat => 1,
            Self::TxTwo | Self::TxEight | Self::TxKilled => pace.pick(1, 3),
        }
    }

    /// One round of one subject.
    pub(crate) async fn round(self, context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
        match self {
            Self::Alone | Self::AloneMysql | Self::AloneSqlite => alone::round(context, kind).await,
            Self::Keys16 => keys::round(context, kind, 16).await,
            Self::Keys64 => keys::round(context, kind, 64).await,
            Self::Keys256 | Self::Keys256Mysql => keys::round(context, kind, 256).await,
            Self::Hot64 | Self::Shared64 | Self::Limit8 => hot::round(context, kind).await,
            Self::Hot4proc => hot4proc::round(context, kind, (4, 16), 4000).await,
            Self::Handover => handover::round(context, kind).await,
            Self::Polling => polling::round(context, kind).await,
            Self::Waiters => waiters::round(context, kind).await,
            Self::Held => held::round(context, kind).await,
            Self::MillionRows => million_rows::round(context, kind).await,
            Self::Bloat => bloat::round(context, kind).await,
            Self::Attribute => attribute::round(context, kind).await,
            Self::TxAlone | Self::TxAloneMysql => unit::apart(context, kind, 1).await,
            Self::TxAlone1ms => unit::far_away(context, kind).await,
            Self::TxNewKeys => unit::new_keys(context, kind).await,
            Self::TxKeys64 => unit::apart(context, kind, 64).await,
            Self::TxHot64 => unit::hot(context, kind, 64).await,
            Self::TxHot4proc => hot4proc::round(context, kind, (4, 16), context.pace.pick(2000, 4000)).await,
            Self::TxTwo => hot4proc::round(context, kind, (2, 1), context.pace.pick(8000, 20_000)).await,
            Self::TxEight => hot4proc::round(context, kind, (8, 1), context.pace.pick(12_000, 20_000)).await,
            Self::TxKilled => unit::killed(context, kind).await,
            Self::OnceAlone => once::round(context, kind, 1).await,
            Self::OnceReplays64 => once::round(context, kind, 64).await,
        }
    }
}

impl clap::ValueEnum for Scenario {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.name().into())
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Opens the subject, which then is alone on its server, runs `body`, and closes it. Adds connections.
pub(crate) async fn with_subject(
    context: &mut Context<'_>,
    kind: Kind,
    plan: Use,
    body: impl AsyncFnOnce(&dyn Subject) -> anyhow::Result<Figures>,
) -> anyhow::Result<Figures> {
    let url = context.servers.url(kind.place())?;
    with_subject_at(context, kind, &url, plan, body).await
}

/// The same over another way to its server.
pub(crate) async fn with_subject_at(
    context: &mut Context<'_>,
    kind: Kind,
    url: &str,
    plan: Use,
    body: impl AsyncFnOnce(&dyn Subject) -> anyhow::Result<Figures>,
) -> anyhow::Result<Figures> {
    let subject = kind.open_at(url, plan).await?;
    let figures = body(&*subject).await;
    let connections = context.servers.connections(kind.place()).await;
    subject.close().await?;
    let mut figures = figures?;
    figures.connections = Some(connections? as f64);
    Ok(figures)
}

/// Statements for each pair, from a short run of its own: PostgreSQL counts only while asked to, since
/// counting costs time. `None` where nobody counts.
pub(crate) async fn statements_per_pair(
    context: &mut Context<'_>,
    kind: Kind,
    plan: Use,
    body: impl AsyncFnOnce(&dyn Subject) -> anyhow::Result<u64>,
) -> anyhow::Result<Option<f64>> {
    let place = kind.place();
    if place == Place::Sqlite {
        return Ok(None);
    }
    context.servers.count_statements(place, true).await?;
    let subject = kind.open(context.servers, plan).await?;
    let before = context.servers.statements(place).await?;
    let pairs = body(&*subject).await;
    let statements = context.servers.statements_since(place, before).await;
    subject.close().await?;
    context.servers.count_statements(place, false).await?;
    let (pairs, statements) = (pairs?, statements?);
    Ok(statements.map(|statements| statements as f64 / pairs.max(1) as f64))
}

/// How long the run for counting is.
pub(crate) const COUNTED: Duration = Duration::from_millis(300);

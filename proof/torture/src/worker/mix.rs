//! The calls, drawn at random: few keys, short leases, every form of call and every way to end one.

use std::time::Duration;

use dblock::{LockOptions, OnLost};
use fastrand::Rng;

use super::keys::{JOB, LIMITED, LONG, SHARED, TICKET, account_key, any_key, key_name};
use crate::bank::{ACCOUNTS, Transfer};
use crate::history::Form;

/// The longest lease. It outlives slow commits.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(5);

/// Short, because two calls that wait for each other's keys hold both meanwhile.
const LONGEST_INNER_WAIT: Duration = Duration::from_secs(1);

/// The plan of a call.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(super) key: String,
    /// A second key, taken together with the first.
    pub(super) and: Option<String>,
    pub(super) form: Form,
    pub(super) ttl: Duration,
    pub(super) wait: Duration,
    pub(super) renew: bool,
    pub(super) hold_min: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    /// It shares the key, while fewer than this are inside.
    pub(super) limit: Option<u32>,
    pub(super) section: Section,
    pub(super) course: Course,
    /// The section counts in the database.
    pub(super) counts: bool,
    /// The call is dropped after so long, if it has not ended.
    pub(super) dropped_after: Option<Duration>,
}

/// How a transaction goes with which a lock ends.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Course {
    /// The caller's own transaction has read before it asks for the lock.
    pub(super) reads_first: bool,
    /// The caller makes a second call in its own transaction.
    pub(super) calls_again: bool,
    /// The transaction is rolled back at its end.
    pub(super) rolls_back: bool,
    /// An administrator ends its session so long after it has the lock.
    pub(super) session_ends_after: Option<Duration>,
}

/// The work under the lock.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) length: Duration,
    pub(super) work: Work,
    /// The body panics when it is done.
    pub(super) panics: bool,
    /// A call that the section makes.
    pub(super) inner: Option<Box<Plan>>,
    /// A task that is spawned without `inherit` makes the inner call.
    pub(super) spawns: bool,
    /// How long the body blocks its thread.
    pub(super) blocks: Option<Duration>,
}

/// What a section does while it lasts.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Unfenced,
    /// Writes to the resource that checks tokens, over and over.
    Fenced,
    /// Holds the first account of a transfer; the inner call holds the second and makes the transfer.
    Transfer(Transfer),
}

impl Plan {
    /// A call whose section only lasts.
    pub(super) fn bare(key: String, form: Form, ttl: Duration) -> Self {
        Self {
            key,
            and: None,
            form,
            ttl,
            wait: Duration::ZERO,
            renew: true,
            hold_min: None,
            max_hold: None,
            limit: None,
            section: Section {
                length: Duration::ZERO,
                work: Work::Unfenced,
                panics: false,
                inner: None,
                spawns: false,
                blocks: None,
            },
            course: Course::default(),
            counts: false,
            dropped_after: None,
        }
    }

    /// Money is moved under the lock.
    pub(super) fn is_transfer(&self) -> bool {
        matches!(self.section.work, Work::Transfer(_))
    }

    /// Gives the form of a call with more options, if this one's has too few.
    fn with_options(mut self) -> Self {
        if self.form == Form::Attribute || self.form.ends_with_transaction() {
            self.form = Form::Run;
        }
        self
    }

    /// Sets `hold_min`. (The worker's attributes have no such option.)
    fn at_least(mut self, hold_min: Duration) -> Self {
        self = self.with_options();
        self.hold_min = Some(hold_min);
        self
    }

    /// Sets `max_hold`. The body outlasts it or not.
    fn at_most(mut self, max_hold: Duration, outlasts: bool) -> Self {
        self = self.with_options();
        if outlasts {
            self.section.length = max_hold + Duration::from_secs(2);
        }
        self.max_hold = Some(max_hold);
        self
    }

    /// Makes the lease, and those of the inner calls, as long as the store's shortest.
    pub(super) fn no_shorter_than(mut self, ttl: Duration) -> Self {
        let longer = ttl.saturating_sub(self.ttl);
        self.ttl += longer;
        // A body that is meant to outlast its lease still does.
        self.section.blocks = self.section.blocks.map(|length| length + longer);
        let inner = self.section.inner.take();
        self.section.inner = inner.map(|inner| Box::new(inner.no_shorter_than(ttl)));
        self
    }

    pub(super) fn options(&self) -> LockOptions {
        let mut options = LockOptions::new().ttl(self.ttl).wait(self.wait).renew(self.renew);
        if let Some(length) = self.hold_min {
            options = options.hold_min(length);
        }
        if let Some(length) = self.max_hold {
            options = options.max_hold(length);
        }
        if let Some(limit) = self.limit {
            options = options.limit(limit);
        }
        options.on_lost(if self.form == Form::Signal {
            OnLost::Signal
        } else {
            OnLost::Cancel
        })
    }
}

/// A call of an ordinary task. With `transactions` some locks end with one, and others count.
pub(super) fn plan(rng: &mut Rng, keys: usize, has_bank: bool, transactions: bool) -> Plan {
    if has_bank && rng.u8(..5) == 0 {
        return transfer(rng);
    }
    let key = any_key(rng, keys);
    let mut plan = one(rng, key);
    if transactions && rng.u8(..3) == 0 {
        plan = ends_with_transaction(rng, plan);
    }
    if rng.u8(..8) == 0 {
        let other = key_name(rng.usize(..keys));
        return counting(together(rng, plan, other), false);
    }
    match rng.u8(..40) {
        0 => plan = plan.at_least(millis(rng, 100..1_000)),
        1 | 2 => plan = plan.at_most(millis(rng, 100..2_000), rng.bool()),
        // Long waits show a caller that is passed over again and again.
        3..=8 => plan.wait = millis(rng, 6_000..12_000),
        _ => {}
    }
    if rng.u8(..4) == 0 && can_nest(plan.form) {
        // Mostly a re-entry; else another key, with a short wait.
        let key = if rng.u8(..3) == 0 {
            key_name(rng.usize(..keys))
        } else {
            plan.key.clone()
        };
        let mut inner = inside(rng, key);
        // `hold_min` of the lock around it would be cut short.
        if transactions && plan.hold_min.is_none() && rng.u8(..6) == 0 {
            inner = ends_with_transaction(rng, inner);
        }
        match rng.u8(..16) {
            // The lock of a child would be open at the commit.
            0..=3 if !plan.form.ends_with_transaction() => {
                inner = inherited(inner, &plan);
                if rng.bool() {
                    let key = key_name(rng.usize(..keys));
                    inner.section.inner = Some(Box::new(inside(rng, key)));
                }
            }
            4..=6 => plan.section.spawns = true,
            7..=9 if can_nest(inner.form) => {
                let innermost = inside(rng, plan.key.clone());
                inner.section.inner = Some(Box::new(innermost));
            }
            _ => {}
        }
        plan.section.inner = Some(Box::new(inner));
    }
    let counts = transactions && rng.u8(..3) == 0;
    counting(plan, counts)
}

/// Lets a lock end with a transaction, the library's or the caller's own.
fn ends_with_transaction(rng: &mut Rng, mut plan: Plan) -> Plan {
    plan.form = if rng.bool() {
        Form::Transaction
    } else {
        Form::InTransaction
    };
    plan.course = Course {
        reads_first: rng.u8(..4) == 0,
        calls_again: rng.u8(..3) == 0,
        rolls_back: rng.u8(..8) == 0,
        session_ends_after: (rng.u8(..12) == 0).then(|| millis(rng, 0..30)),
    };
    if let Some(after) = plan.course.session_ends_after {
        // So that the end comes in the middle.
        plan.section.length = plan.section.length.max(after * 2);
    }
    plan
}

/// Lets those calls count that acquire their key: each whose lock ends with a transaction, and the outermost if
/// it `counts`.
fn counting(mut plan: Plan, counts: bool) -> Plan {
    fn mark(plan: &mut Plan, mut held: Vec<String>) {
        let acquires = !held.contains(&plan.key);
        plan.counts |= acquires && plan.form.ends_with_transaction();
        if plan.section.spawns {
            held.clear();
        } else {
            held.extend([Some(plan.key.clone()), plan.and.clone()].into_iter().flatten());
        }
        if let Some(inner) = &mut plan.section.inner {
            mark(inner, held);
        }
    }
    plan.counts = counts && plan.form != Form::BareGuard && plan.and.is_none();
    mark(&mut plan, Vec::new());
    plan
}

/// A call whose section blocks its thread for longer than its lease, which is not renewed.
pub(super) fn blocking(rng: &mut Rng, keys: usize) -> Plan {
    let key = key_name(rng.usize(..keys));
    let mut plan = one(rng, key);
    plan.form = Form::Run;
    plan.ttl = Duration::from_secs(1);
    plan.wait = Duration::from_secs(3);
    plan.renew = false;
    plan.dropped_after = None;
    plan.section.blocks = Some(millis(rng, 500..2_000));
    plan
}

/// A call whose section is longer than its lease, which is renewed while others wait.
pub(super) fn long(rng: &mut Rng) -> Plan {
    let mut plan = one(rng, LONG.to_owned());
    plan.ttl = LONGEST_TTL;
    plan.wait = Duration::from_secs(12);
    plan.renew = true;
    plan.dropped_after = None;
    plan.section.length = millis(rng, 500..7_000);
    plan
}

/// A job on a schedule: nobody waits for the lock, and `hold_min` keeps others from doing the job again.
pub(super) fn job(rng: &mut Rng) -> Plan {
    let mut plan = one(rng, JOB.to_owned()).at_least(millis(rng, 500..3_000));
    plan.wait = Duration::ZERO;
    plan.section.length = millis(rng, 0..10);
    plan
}

/// A call that shares its key, or wants it alone.
pub(super) fn sharing(rng: &mut Rng) -> Plan {
    let limit = (rng.u8(..8) != 0).then_some(u32::MAX);
    shares(rng, SHARED, limit)
}

/// A call with a limit, or one that wants its key alone. The limit sometimes changes.
pub(super) fn limited(rng: &mut Rng) -> Plan {
    let limit = match rng.u8(..20) {
        0 => None,
        1 => Some(1),
        2..=4 => Some(2),
        _ => Some(3),
    };
    shares(rng, LIMITED, limit)
}

/// A call whose lock goes into a ticket, or one that adopts it.
pub(super) fn ticket(rng: &mut Rng, gives: bool) -> Plan {
    let mut plan = one(rng, TICKET.to_owned());
    plan.form = if gives { Form::Guard } else { Form::Adopt };
    plan.section.panics = false;
    if !gives {
        // It waits for the store only, and its lease is an ordinary one.
        plan.wait = Duration::ZERO;
        plan.renew = true;
    }
    plan
}

fn shares(rng: &mut Rng, key: &str, limit: Option<u32>) -> Plan {
    let mut plan = one(rng, key.to_owned()).with_options();
    plan.section.work = Work::Unfenced;
    plan.limit = limit;
    match rng.u8(..10) {
        0 => plan = plan.at_most(millis(rng, 100..2_000), rng.bool()),
        1..=3 => plan.wait = millis(rng, 6_000..12_000),
        _ => {}
    }
    plan
}

/// A task of its own that shares the lock.
fn inherited(child: Plan, parent: &Plan) -> Plan {
    Plan {
        key: parent.key.clone(),
        form: Form::Inherit,
        ttl: parent.ttl,
        dropped_after: None,
        ..child
    }
}

/// A bare guard is in no chain, so a call under it would wait for it.
fn can_nest(form: Form) -> bool {
    form != Form::BareGuard
}

/// A call inside another's section.
fn inside(rng: &mut Rng, key: String) -> Plan {
    let plan = one(rng, key);
    Plan {
        wait: plan.wait.min(LONGEST_INNER_WAIT),
        ..plan
    }
}

fn one(rng: &mut Rng, key: String) -> Plan {
    let form = match rng.u8(..10) {
        0..=2 => Form::Run,
        3..=5 => Form::Attribute,
        6..=7 => Form::Guard,
        8 => Form::BareGuard,
        _ => Form::Signal,
    };
    let wait = match rng.u8(..10) {
        0 => Duration::ZERO,
        1..=3 => millis(rng, 20..500),
        _ => millis(rng, 1_000..5_000),
    };
    let length = match rng.u8(..100) {
        0..=19 => Duration::ZERO,
        20..=89 => millis(rng, 1..20),
        90..=98 => millis(rng, 30..300),
        // Longer than the lease, which must be renewed.
        _ => millis(rng, 1_000..4_500),
    };
    let bare = Plan::bare(key, form, millis(rng, 1_000..3_001));
    Plan {
        wait,
        renew: rng.u8(..10) != 0,
        section: Section {
            length,
            work: if rng.bool() { Work::Fenced } else { Work::Unfenced },
            panics: rng.u8(..30) == 0,
            ..bare.section
        },
        dropped_after: (rng.u8(..8) == 0).then(|| millis(rng, 0..400)),
        ..bare
    }
}

/// Adds a second key to a call.
fn together(rng: &mut Rng, mut plan: Plan, other: String) -> Plan {
    if other != plan.key {
        plan.and = Some(other);
        plan.form = [Form::RunAll, Form::AttributeAll, Form::GuardAll][rng.usize(..3)];
    }
    plan
}

/// A transfer takes both accounts' locks together, or that of the smaller account first: so no two transfers
/// wait for each other.
fn transfer(rng: &mut Rng) -> Plan {
    let first = rng.i32(0..ACCOUNTS - 1);
    let second = rng.i32(first + 1..ACCOUNTS);
    let (from, to) = if rng.bool() {
        (first, second)
    } else {
        (second, first)
    };
    let transfer = Transfer {
        id: 0,
        from,
        to,
        amount: rng.i64(1..1_000),
    };
    let account = |rng: &mut Rng, account: i32, transfer: Transfer| {
        let mut plan = one(rng, account_key(account));
        plan.form = if rng.bool() { Form::Run } else { Form::Attribute };
        plan.wait = millis(rng, 500..3_000);
        plan.section.work = Work::Transfer(transfer);
        plan.section.length = Duration::ZERO;
        plan
    };
    if rng.bool() {
        let plan = account(rng, from, transfer);
        return together(rng, plan, account_key(to));
    }
    let mut inner = account(rng, second, transfer);
    match rng.u8(..4) {
        0 => inner.form = Form::Transaction,
        1 => inner.form = Form::InTransaction,
        _ => {}
    }
    let mut outer = account(rng, first, transfer);
    outer.section.inner = Some(Box::new(inner));
    outer
}

fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

#[cfg(test)]
mod tests {
    use super::super::keys::KEYS;
    use super::*;

    #[test]
    fn the_mix_holds_everything() {
        use Form::{Attribute, BareGuard, Guard, Run, Signal};
        let mut rng = Rng::with_seed(1);
        let plans: Vec<Plan> = (0..5_000).map(|_| plan(&mut rng, KEYS, true, true)).collect();
        let some = |test: &dyn Fn(&Plan) -> bool| assert!(plans.iter().any(test));
        for form in [Run, Attribute, Guard, BareGuard, Signal] {
            some(&|plan| plan.form == form);
        }
        let inner = |plan: &Plan| plan.section.inner.clone();
        some(&|plan| inner(plan).is_some_and(|inner| inner.form == Form::Inherit));
        some(&|plan| {
            inner(plan).is_some_and(|inner| inner.form == Form::Inherit && inner.section.inner.is_some())
        });
        some(&|plan| inner(plan).is_some_and(|inner| plan.section.spawns && inner.key == plan.key));
        some(&|plan| inner(plan).is_some_and(|inner| inner.key == plan.key));
        some(&|plan| inner(plan).is_some_and(|inner| inner.key != plan.key));
        some(&|plan| matches!(plan.section.work, Work::Transfer(_)) && inner(plan).is_some());
        for form in [Form::Transaction, Form::InTransaction] {
            let of_form = |test: &dyn Fn(&Plan) -> bool| some(&|plan| plan.form == form && test(plan));
            of_form(&|plan| plan.course.rolls_back);
            of_form(&|plan| plan.course.session_ends_after.is_some());
            of_form(&|plan| plan.wait.is_zero());
            of_form(&|plan| inner(plan).is_some_and(|inner| inner.key == plan.key && !inner.counts));
            of_form(&|plan| inner(plan).is_some_and(|inner| inner.key != plan.key && inner.counts));
            some(&|plan| inner(plan).is_some_and(|inner| inner.form == form));
        }
        some(&|plan| plan.form == Form::InTransaction && plan.course.reads_first);
        some(&|plan| plan.form == Form::InTransaction && plan.course.calls_again);
        some(&|plan| plan.form == Form::Run && plan.counts);
        assert!(
            plans
                .iter()
                .all(|plan| !plan.form.ends_with_transaction() || plan.counts)
        );
        for form in [Form::RunAll, Form::AttributeAll, Form::GuardAll] {
            some(&|plan| plan.form == form && matches!(plan.section.work, Work::Transfer(_)));
            some(&|plan| plan.form == form && matches!(plan.section.work, Work::Fenced));
        }
        assert!(
            plans
                .iter()
                .all(|plan| plan.form.takes_two() == plan.and.is_some())
        );
        some(&|plan| plan.section.panics);
        some(&|plan| plan.section.length > plan.ttl);
        some(&|plan| plan.dropped_after.is_some());
        some(&|plan| plan.wait.is_zero());
        some(&|plan| plan.wait > Duration::from_secs(6));
        some(&|plan| plan.hold_min.is_some());
        some(&|plan| {
            plan.max_hold
                .is_some_and(|max_hold| plan.section.length > max_hold)
        });
        assert!(
            plans
                .iter()
                .all(|plan| plan.ttl <= LONGEST_TTL && plan.options() != LockOptions::new())
        );
        // The worker's attributes have neither.
        assert!(
            plans
                .iter()
                .all(|plan| plan.form != Form::Attribute || (plan.hold_min, plan.max_hold) == (None, None))
        );
    }
}

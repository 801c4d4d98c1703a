//! Judges histories of locks by a linearizability checker of another maker, [`todc_utils`].
//!
//! This crate knows nothing of dblock. It says what a lock and a counter do when one operation follows another
//! ([`specification`]). The checker finds an order of the operations that fits, each at one moment between its two
//! times, or says that there is none.
//!
//! The operations of one object do not concern those of another. So each object is judged alone, and in parts: where no
//! operation is under way, what was done is known, and the next part begins with that. ([Horn and
//! Kroening](https://arxiv.org/abs/1504.00204) prove the first; the second holds because all orders lead to the same state
//! there.) The checker takes memory and time that grow with the square of a part, so one of more than [`LARGEST`] operations is left out.

mod specification;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};

use self::specification::{Object, State, Step};

/// Something that was done to an object. As JSON it is one flat object, such as
/// `{"object":"lock a","op":"enter","by":"p1/7","token":12,"from":5,"to":9}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Its name, which tells it from all other objects.
    pub object: String,
    /// Its effect.
    #[serde(flatten)]
    pub done: Done,
    /// It was done at one moment from here …
    pub from: i64,
    /// … to here, on one clock for all operations.
    pub to: i64,
}

/// The effect of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Done {
    /// An owner enters a lock: alone, or beside others that share it.
    Enter {
        /// The owner, who enters once.
        by: String,
        /// It shares the lock while fewer than this many are inside. Without it, it is alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
        /// Its fence token.
        token: i64,
    },
    /// An owner leaves the lock.
    Leave {
        /// The owner.
        by: String,
    },
    /// A counter is increased by one.
    Count {
        /// Its value afterwards.
        number: i64,
        /// The fence token of who did it.
        token: i64,
    },
}

/// An object whose operations fit no order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The object.
    pub object: String,
    /// The operations of the part that fits no order, by their first times.
    pub part: Vec<Operation>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: no order fits {} operations:",
            self.object,
            self.part.len()
        )?;
        self.part.iter().take(SHOWN).try_for_each(|operation| {
            let Operation { done, from, to, .. } = operation;
            write!(f, "\n  {from} to {to}: {done:?}")
        })?;
        match self.part.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// The operations of the largest part that is judged, which takes minutes.
pub const LARGEST: usize = 10_000;

/// So many operations of a violation are shown.
const SHOWN: usize = 20;

/// How much was judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Judged {
    /// Objects.
    pub objects: usize,
    /// Operations.
    pub operations: usize,
    /// Operations of the longest part that was judged at once.
    pub longest: usize,
    /// Operations of parts that were left out.
    pub left_out: usize,
}

/// Judges all operations. Of each object that breaks its rules it returns the first part that does.
pub fn judge(operations: impl IntoIterator<Item = Operation>) -> (Judged, Vec<Violation>) {
    let mut objects: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
    for operation in operations {
        let of_object = objects.entry(operation.object.clone()).or_default();
        of_object.push(operation);
    }
    let mut judged = Judged::default();
    let mut violations = Vec::new();
    for (object, mut operations) in objects {
        operations.sort_by_key(|operation| operation.from);
        judged.objects += 1;
        judged.operations += operations.len();
        let mut before = Before::default();
        for part in operations.chunk_by(quiet_after()) {
            if part.len() > LARGEST {
                judged.left_out += part.len();
                before.follow(part);
                continue;
            }
            judged.longest = judged.longest.max(part.len());
            if before.fits(part) {
                continue;
            }
            let part = part.to_vec();
            violations.push(Violation { object, part });
            break;
        }
    }
    (judged, violations)
}

/// Whether the next operation began before all earlier ones had ended.
fn quiet_after() -> impl FnMut(&Operation, &Operation) -> bool {
    let mut busy_until = i64::MIN;
    move |operation, next| {
        busy_until = busy_until.max(operation.to);
        next.from <= busy_until
    }
}

/// The state of an object before a part of its history.
#[derive(Default)]
struct Before {
    state: State,
    owners: HashMap<String, u32>,
}

impl Before {
    /// Whether some order of the part fits. Then the state is the one after it.
    fn fits(&mut self, part: &[Operation]) -> bool {
        let start = Step::Start(self.state.clone());
        let steps = self.follow(part);
        let mut times = Vec::with_capacity(2 * part.len());
        for (number, operation) in part.iter().enumerate() {
            times.push((operation.from, 0, number));
            times.push((operation.to, 1, number));
        }
        // A response comes after the calls of the same moment: so both orders are allowed.
        times.sort_unstable();
        let start = [Action::Call(start.clone()), Action::Response(start)].map(|action| (0, action));
        let operations = times.into_iter().map(|(_, response, number)| {
            let step = steps[number].clone();
            let action = if response == 0 {
                Action::Call(step)
            } else {
                Action::Response(step)
            };
            (number + 1, action)
        });
        let history = History::from_actions(start.into_iter().chain(operations).collect());
        WGLChecker::<Object>::is_linearizable(history)
    }

    /// The state is the one after the part, whatever the order of its operations.
    fn follow(&mut self, part: &[Operation]) -> Vec<Step> {
        let steps: Vec<Step> = part.iter().map(|operation| self.step(&operation.done)).collect();
        self.state.follow(&steps);
        steps
    }

    fn step(&mut self, done: &Done) -> Step {
        let mut owner = |by: &String| {
            let next = u32::try_from(self.owners.len()).expect("fewer owners than that");
            *self.owners.entry(by.clone()).or_insert(next)
        };
        match done {
            Done::Enter { by, limit, token } => Step::Enter {
                by: owner(by),
                limit: *limit,
                token: *token,
            },
            Done::Leave { by } => Step::Leave { by: owner(by) },
            Done::Count { number, token } => Step::Count {
                number: *number,
                token: *token,
            },
        }
    }
}

#[cfg(test)]
mod tests;

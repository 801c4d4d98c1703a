//! The rules of a lock and of a counter, one operation after the other.

use todc_utils::specifications::Specification;

/// An operation, as the checker sees it.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// The state that the parts before have left. The first step of each part.
    Start(State),
    Enter {
        by: u32,
        limit: Option<u32>,
        token: i64,
    },
    Leave {
        by: u32,
    },
    Count {
        number: i64,
        token: i64,
    },
}

/// A lock or a counter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The owners inside, in the order of their numbers, with the limits of those who share it.
    inside: Vec<(u32, Option<u32>)>,
    /// The largest token, and the largest of an owner who was alone.
    token: i64,
    token_alone: i64,
    /// Of a counter.
    number: i64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            inside: Vec::new(),
            token: i64::MIN,
            token_alone: i64::MIN,
            number: 0,
        }
    }
}

impl State {
    /// `None` if that cannot be done now.
    fn after(&self, step: &Step) -> Option<Self> {
        let mut after = self.clone();
        match *step {
            Step::Start(ref state) => return Some(state.clone()),
            Step::Enter {
                by,
                limit: None,
                token,
            } => {
                // Tokens grow from owner to owner.
                if !self.inside.is_empty() || token <= self.token {
                    return None;
                }
                after.inside.push((by, None));
                (after.token, after.token_alone) = (token, token);
            }
            Step::Enter {
                by,
                limit: Some(limit),
                token,
            } => {
                // The tokens of those who share a lock say nothing of their order.
                if !self.has_room(limit) || token <= self.token_alone {
                    return None;
                }
                let at = self.inside.partition_point(|(other, _)| *other < by);
                after.inside.insert(at, (by, Some(limit)));
                after.token = self.token.max(token);
            }
            Step::Leave { by } => {
                let at = self.inside.iter().position(|(other, _)| *other == by)?;
                after.inside.remove(at);
            }
            Step::Count { number, token } => {
                if number != self.number + 1 || token <= self.token {
                    return None;
                }
                (after.number, after.token) = (number, token);
            }
        }
        Some(after)
    }

    /// A limit counts the others that have a limit. A caller may take the place of another one of its process, whose limit was
    /// larger.
    fn has_room(&self, limit: u32) -> bool {
        let limits = || self.inside.iter().map(|(_, limit)| *limit);
        let limited = || limits().flatten().filter(|limit| *limit < u32::MAX);
        let most = limited().fold(limit, u32::max);
        limits().all(|limit| limit.is_some()) && (limit == u32::MAX || limited().count() < most as usize)
    }

    /// The state after these steps, which fit some order: all orders lead to it.
    pub(crate) fn follow(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Enter { by, limit, token } => {
                    self.inside.push((by, limit));
                    self.token = self.token.max(token);
                    if limit.is_none() {
                        self.token_alone = self.token_alone.max(token);
                    }
                }
                Step::Count { number, token } => {
                    (self.number, self.token) = (self.number.max(number), self.token.max(token));
                }
                Step::Start(_) | Step::Leave { .. } => {}
            }
        }
        let left = |by: u32| {
            let leaves = |step: &Step| matches!(step, Step::Leave { by: who } if *who == by);
            steps.iter().any(leaves)
        };
        self.inside.retain(|(by, _)| !left(*by));
        self.inside.sort_unstable();
    }
}

/// The rules, for the checker.
pub(crate) struct Object;

impl Specification for Object {
    type State = State;
    type Operation = Step;

    fn init() -> State {
        State::default()
    }

    fn apply(step: &Step, state: &State) -> (bool, State) {
        match state.after(step) {
            Some(after) => (true, after),
            None => (false, state.clone()),
        }
    }
}

//! What the models remember only to check the properties.

use crate::store::Token;

/// The order in which owners were let in: by lease, and within one lease by hand-over.
pub type Turn = u8;

/// The fence tokens of one key that were given so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tokens {
    highest: Token,
    turns: Turn,
    fell: bool,
}

impl Tokens {
    /// Notes a token given to a new owner, and returns the turn of that owner.
    pub fn give(&mut self, token: Token) -> Turn {
        self.fell |= token <= self.highest;
        self.highest = self.highest.max(token);
        self.turns += 1;
        self.turns
    }

    /// How many owners were let in.
    pub fn turns(&self) -> Turn {
        self.turns
    }

    /// Each token was larger than all before.
    pub fn grow(&self) -> bool {
        !self.fell
    }
}

/// A resource that refuses a write with a smaller token than it has seen. Each owner writes as soon as it is
/// inside: then a late write of a former owner meets the most that it can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Resource {
    token: Token,
    turn: Turn,
}

impl Resource {
    /// The first write of the owner who has `token` and came in at `turn`.
    pub fn write(&mut self, token: Token, turn: Turn) {
        if !self.refuses(token) {
            self.token = token;
            self.turn = self.turn.max(turn);
        }
    }

    /// Whether a write with this token is refused.
    pub fn refuses(&self, token: Token) -> bool {
        token < self.token
    }

    /// Whether a further write of this owner is refused if a later owner has written.
    pub fn keeps_order(&self, token: Token, turn: Turn) -> bool {
        turn >= self.turn || self.refuses(token)
    }
}

//! How the processes of one run differ from each other.

use serde::{Deserialize, Serialize};

use crate::target::StoreKind;

/// The settings of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Its locks may go from task to task without the database in between.
    pub(crate) hand_over: bool,
    /// It can listen for wake-ups, where the store has any.
    pub(crate) listens: bool,
}

impl Settings {
    /// Of every four processes two are ordinary, one has no local hand-over, and one cannot listen.
    pub(crate) fn of_slot(slot: usize, store: StoreKind, hand_over: bool) -> Self {
        Self {
            hand_over: hand_over && slot % 4 != 1,
            listens: !matches!(store, StoreKind::Postgres | StoreKind::Redis) || slot % 4 != 2,
        }
    }

    /// For tables.
    pub(crate) fn name(self) -> &'static str {
        match (self.hand_over, self.listens) {
            (true, true) => "ordinary",
            (false, true) => "without local hand-over",
            (true, false) => "cannot listen",
            (false, false) => "without local hand-over, cannot listen",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_four_has_every_kind() {
        let names = |store, hand_over| {
            let names = (0..4).map(|slot| Settings::of_slot(slot, store, hand_over).name());
            names.collect::<Vec<_>>()
        };
        for store in [StoreKind::Postgres, StoreKind::Redis] {
            assert_eq!(
                names(store, true),
                ["ordinary", "without local hand-over", "cannot listen", "ordinary"]
            );
        }
        assert_eq!(
            names(StoreKind::Sqlite, true),
            ["ordinary", "without local hand-over", "ordinary", "ordinary"]
        );
        let all_without = names(StoreKind::Mysql, false);
        assert!(all_without.iter().all(|name| *name == "without local hand-over"));
    }
}

//! The user's rights on the tables.

use crate::store::Finding;
use crate::store::StoreError;

/// What a right is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Locks,
    Records,
}

/// A statement that needs a right and touches no row.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) statement: String,
    right: &'static str,
    needed: Use,
}

/// A probe that failed.
#[derive(Debug)]
pub(crate) struct Refused {
    right: &'static str,
    needed: Use,
    error: StoreError,
}

impl Probe {
    pub(crate) fn refused(self, error: StoreError) -> Refused {
        let Self { right, needed, .. } = self;
        Refused { right, needed, error }
    }
}

/// A probe for each right on the three tables.
pub(crate) fn probes(locks: &str, versions: &str, records: &str) -> Vec<Probe> {
    let of = |needed, right, statement| Probe {
        statement,
        right,
        needed,
    };
    let mut probes = Vec::new();
    for (needed, table) in [(Use::Locks, locks), (Use::Records, records)] {
        probes.extend([
            of(
                needed,
                "SELECT",
                format!("SELECT holder FROM {table} WHERE 1 = 0"),
            ),
            of(
                needed,
                "INSERT",
                format!("INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0"),
            ),
            of(
                needed,
                "UPDATE",
                format!("UPDATE {table} SET holder = holder WHERE 1 = 0"),
            ),
            of(needed, "DELETE", format!("DELETE FROM {table} WHERE 1 = 0")),
        ]);
    }
    let version = format!("SELECT version FROM {versions} WHERE 1 = 0");
    probes.push(of(Use::Locks, "SELECT", version));
    probes
}

/// The findings, from the [`probes`] that failed.
pub(crate) fn grants(refused: &[Refused]) -> [Finding; 2] {
    let of = |needed| refused.iter().filter(move |refused| refused.needed == needed);
    let rights = |needed| of(needed).map(|refused| refused.right).collect::<Vec<_>>();
    let found = |needed| {
        let first = of(needed).next()?;
        Some(format!("{} fails: {}", rights(needed).join(", "), first.error))
    };
    let locks = match found(Use::Locks) {
        None => Finding::fine(
            "grants",
            "this user may SELECT, INSERT, UPDATE and DELETE",
            "locks can be taken and released, and old rows purged",
        ),
        Some(found) => {
            let remedy =
                "grant SELECT, INSERT, UPDATE and DELETE on the lock table, and SELECT on its version table";
            if rights(Use::Locks) == ["DELETE"] {
                let meaning = "locks work, but old rows are never purged";
                Finding::note("grants", found, meaning, remedy)
            } else {
                Finding::fault("grants", found, "locks cannot be taken or released", remedy)
            }
        }
    };
    let records = match found(Use::Records) {
        None => Finding::fine(
            "record_grants",
            "this user may SELECT, INSERT, UPDATE and DELETE on the table of records",
            "`run_once` works, and old records are purged",
        ),
        Some(found) => Finding::note(
            "record_grants",
            found,
            "locks work, but programs that use `run_once` do not, or leave old records behind",
            "if a program uses it: migrate, and grant SELECT, INSERT, UPDATE and DELETE on the table of records",
        ),
    };
    [locks, records]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Severity;
    use crate::store::StoreErrorKind;

    /// The findings when these rights are missing.
    fn without(rights: &[(Use, &str)]) -> [Finding; 2] {
        let all = probes("l", "v", "r").into_iter();
        let missing = all.filter(|probe| rights.contains(&(probe.needed, probe.right)));
        let refused = missing.map(|probe| probe.refused(StoreError::new(StoreErrorKind::Refused, "no")));
        grants(&refused.collect::<Vec<_>>())
    }

    #[test]
    fn only_a_missing_right_to_take_locks_is_a_fault() {
        let severities = |rights: &[_]| without(rights).map(|finding| finding.severity);
        let (fine, note, fault) = (Severity::Fine, Severity::Note, Severity::Fault);
        assert_eq!(severities(&[]), [fine, fine]);
        assert_eq!(severities(&[(Use::Locks, "DELETE")]), [note, fine]);
        assert_eq!(severities(&[(Use::Records, "SELECT")]), [fine, note]);
        let both = [(Use::Locks, "INSERT"), (Use::Locks, "DELETE")];
        assert_eq!(severities(&both), [fault, fine]);
        assert_eq!(without(&both)[0].found, "INSERT, DELETE fails: no");
    }
}

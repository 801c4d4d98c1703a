//! What a diagnosis finds.

/// One thing that a diagnosis has checked. From `Admin::diagnose`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The short name of the check, such as `durability`. Names are added, never changed.
    pub check: &'static str,
    /// Whether something must be done.
    pub severity: Severity,
    /// The fact, with figures.
    pub found: String,
    /// Its meaning for locks.
    pub meaning: String,
    /// The remedy; `None` when all is well.
    pub remedy: Option<String>,
}

/// How serious a [`Finding`] is. The order is by seriousness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// All is well.
    Fine,
    /// Locks are safe, but slower than they could be, or safe only under a condition that cannot be checked.
    Note,
    /// Locks do not work, or a guarantee does not hold.
    Fault,
}

impl Finding {
    /// All is well.
    pub fn fine(check: &'static str, found: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self {
            check,
            severity: Severity::Fine,
            found: found.into(),
            meaning: meaning.into(),
            remedy: None,
        }
    }

    /// Worth knowing; no guarantee is broken.
    pub fn note(
        check: &'static str,
        found: impl Into<String>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Note,
            remedy: Some(remedy.into()),
            ..Self::fine(check, found, meaning)
        }
    }

    /// Locks do not work, or a guarantee does not hold.
    pub fn fault(
        check: &'static str,
        found: impl Into<String>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Fault,
            ..Self::note(check, found, meaning, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_well_has_its_severity_and_a_remedy() {
        let fine = Finding::fine("c", "f", "m");
        let note = Finding::note("c", "f", "m", "r");
        let fault = Finding::fault("c", "f", "m", "r");
        assert_eq!((fine.severity, &fine.remedy), (Severity::Fine, &None));
        for (found, severity) in [(note, Severity::Note), (fault, Severity::Fault)] {
            let remedy = Some("r".to_owned());
            assert_eq!(
                found,
                Finding {
                    severity,
                    remedy,
                    ..fine.clone()
                }
            );
        }
    }
}

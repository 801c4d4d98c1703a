//! The conditions that a member of etcd must meet to keep locks.

use dblock_core::Finding;
use dblock_core::store::{StoreError, StoreErrorKind};
use etcd_client::{Client, GetOptions, StatusResponse};

use crate::error;
use crate::keys::Keys;

/// A version, as `3.4.23`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(['.', '-', '+']).map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self(next()?, next()?, next()?))
    }

    /// A leader that has stood still may revoke leases that are in use (etcd-io/etcd#15247; mended in 3.4.31
    /// and 3.5.13).
    fn revokes_wrongly(self) -> bool {
        match (self.0, self.1) {
            (3, 4) => self.2 < 31,
            (3, 5) => self.2 < 13,
            _ => self < Self(3, 4, 0),
        }
    }
}

/// Refuses a member that cannot keep locks, or not at present.
pub(crate) fn check(status: &StatusResponse) -> Result<(), StoreError> {
    match Version::parse(status.version()) {
        Some(version) if version >= Version(3, 4, 0) => {}
        _ => {
            let message = format!("etcd {} is too old: 3.4 or later is needed", status.version());
            return Err(StoreError::new(StoreErrorKind::Unsupported, message));
        }
    }
    if status.leader() == 0 {
        let message =
            "this member of etcd knows no leader: the cluster has no quorum, or the member is cut off";
        return Err(StoreError::new(StoreErrorKind::Unreachable, message));
    }
    if status.is_learner() {
        let message =
            "this member of etcd is a learner, which answers nothing: give the address of a voting member";
        return Err(StoreError::new(StoreErrorKind::Unreachable, message));
    }
    Ok(())
}

/// The known fault of this version, in a sentence that names the remedy.
pub(crate) fn fault(status: &StatusResponse) -> Option<String> {
    let version = Version::parse(status.version())?;
    version.revokes_wrongly().then(|| {
        format!(
            "etcd {} may end leases that are in use, after its leader has stood still for seconds (etcd-io/etcd#15247); two \
             owners can be inside then: take 3.4.31, 3.5.13 or later, and let the resource check the fence token",
            status.version()
        )
    })
}

pub(crate) fn version(status: &StatusResponse) -> Finding {
    let found = format!("etcd {}", status.version());
    match fault(status) {
        None => Finding::fine("version", found, "3.4 or later is needed"),
        Some(fault) => Finding::note(
            "version",
            found,
            fault,
            "take 3.4.31, 3.5.13 or later, and let the resource check the fence token",
        ),
    }
}

/// So many changes without a compaction are taken for a cluster that never compacts. Each grant and each
/// release is a change, and each stays on the disk until it is compacted.
const MANY_CHANGES: i64 = 1_000_000;

/// The current revision, and whether the first one can still be read. It asks for a key below the prefix: the
/// user may read no others.
pub(crate) async fn revisions(client: &mut Client, names: &Keys) -> Result<(i64, bool), StoreError> {
    let key = names.all_rows();
    let now = client.get(key.clone(), None).await.map_err(error::of_harmless)?;
    let revision = now.header().map_or(0, etcd_client::ResponseHeader::revision);
    let first = client
        .get(key, Some(GetOptions::new().with_revision(2.min(revision))))
        .await;
    match first {
        Ok(_) => Ok((revision, true)),
        Err(etcd_client::Error::GRpcStatus(status)) if status.message().contains("compacted") => {
            Ok((revision, false))
        }
        Err(error) => Err(error::of_harmless(error)),
    }
}

/// Whether old revisions are dropped. `first_is_there`: revision 2, the first one, can still be read.
pub(crate) fn check_compaction(revision: i64, first_is_there: bool) -> Result<(), StoreError> {
    if !first_is_there || revision < MANY_CHANGES {
        return Ok(());
    }
    let message = format!(
        "this etcd has kept all of its {revision} revisions: it is not compacted, and refuses all writes once it is full; start \
         it with --auto-compaction-mode=periodic --auto-compaction-retention=1h, or run `etcdctl compact`"
    );
    Err(StoreError::new(StoreErrorKind::Unsupported, message))
}

pub(crate) fn compaction(revision: i64, first_is_there: bool) -> Finding {
    let remedy = "start etcd with --auto-compaction-mode=periodic --auto-compaction-retention=1h";
    if first_is_there {
        Finding::note(
            "compaction",
            format!("none so far, in {revision} revisions"),
            "each grant and each release stays on the disk until etcd compacts; a full etcd takes no writes",
            remedy,
        )
    } else {
        Finding::fine(
            "compaction",
            "done before",
            "old revisions are dropped, so etcd does not fill up",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_with_the_fault_are_known() {
        for (text, wrong) in [
            ("3.4.23", true),
            ("3.4.30", true),
            ("3.4.31", false),
            ("3.5.12", true),
            ("3.5.13", false),
            ("3.6.0", false),
            ("3.6.0-rc.1", false),
            ("3.3.27", true),
        ] {
            assert_eq!(
                Version::parse(text).map(Version::revokes_wrongly),
                Some(wrong),
                "{text}"
            );
        }
        assert_eq!(Version::parse("new"), None);
    }

    #[test]
    fn an_etcd_that_never_compacts_is_refused_when_it_has_many_revisions() {
        assert!(check_compaction(MANY_CHANGES - 1, true).is_ok());
        assert!(check_compaction(MANY_CHANGES * 9, false).is_ok());
        let refused = check_compaction(MANY_CHANGES, true).unwrap_err();
        assert!(refused.to_string().contains("--auto-compaction"), "{refused}");
    }
}

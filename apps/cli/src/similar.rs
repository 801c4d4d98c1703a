//! The key that was probably meant.

use dblock::{InspectFilter, LockError, LockManager};

use crate::cli::StoreArguments;

/// The words that tell a user to leave the namespace out of a `key` that has it already. Empty when it has
/// not.
pub(crate) fn without_namespace(store: &StoreArguments, key: &str) -> String {
    let own = store.typed(key);
    match &store.namespace {
        Some(namespace) if own != key => {
            format!("; --namespace {namespace} puts \"{namespace}:\" before the key: write {own:?}")
        }
        _ => String::new(),
    }
}

/// Rows that are looked at. Those that are held and wanted come first.
const ROWS: u32 = 1_000;

/// `; did you mean "order:42"?` behind a message about a key without a row. Nothing when no key is like it.
pub(crate) async fn hint(
    locks: &LockManager,
    store: &StoreArguments,
    key: &str,
) -> Result<String, LockError> {
    let twice = without_namespace(store, key);
    if !twice.is_empty() {
        return Ok(twice);
    }
    let filter = InspectFilter::new().include_free().urgent_first().limit(ROWS);
    let rows = locks.admin().list(filter).await?;
    let keys = rows.iter().map(|row| row.key.as_str());
    Ok(closest(key, keys).map_or_else(String::new, |meant| format!("; did you mean {meant:?}?")))
}

/// At most a third of its letters differ, or it goes on after `key`.
fn closest<'a>(key: &str, keys: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = key.chars().count().max(3) / 3;
    let distance = |other: &str| match other.strip_prefix(key) {
        Some(_) => 1,
        None => strsim::osa_distance(key, other),
    };
    let likely = keys
        .map(|other| (distance(other), other))
        .filter(|(distance, _)| *distance <= allowed);
    likely
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::closest;

    #[test]
    fn a_misspelt_key_and_one_that_is_cut_short_are_found() {
        let keys = || ["order:42", "invoice:7"].into_iter();
        assert_eq!(closest("oder:42", keys()), Some("order:42"));
        assert_eq!(closest("invoice", keys()), Some("invoice:7"));
        assert_eq!(closest("nightly-report", keys()), None);
        assert_eq!(closest("x", std::iter::empty()), None);
    }
}

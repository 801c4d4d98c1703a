//! Hints for misspelt names.

/// The candidate that `name` was probably meant to be: at most a third of its letters differ, or one of the
/// two is a word of the other.
pub fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = name.chars().count().max(3) / 3;
    let is_word_of = |word: &str, name: &str| name.split('_').any(|part| part == word);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(name, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance <= allowed || is_word_of(name, candidate) || is_word_of(candidate, name)
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `` `a`, `b` or `c` ``; `word` is the word before the last.
pub fn list(names: &[impl AsRef<str>], word: &str) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{}`", name.as_ref())).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} {word} {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_its_name_and_a_stranger_does_not() {
        assert_eq!(
            closest("oder_id", ["self", "order_id", "amount"]),
            Some("order_id")
        );
        assert_eq!(closest("tll", ["key", "ttl", "wait"]), Some("ttl"));
        assert_eq!(closest("order", ["self", "order_id"]), Some("order_id"));
        assert_eq!(closest("lock_ttl", ["key", "ttl", "wait"]), Some("ttl"));
        assert_eq!(closest("colour", ["key", "ttl", "wait"]), None);
    }

    #[test]
    fn lists_read_as_a_sentence() {
        assert_eq!(list(&["a"], "or"), "`a`");
        assert_eq!(list(&["a", "b", "c"], "or"), "`a`, `b` or `c`");
        assert_eq!(list(&[] as &[&str], "or"), "");
    }
}

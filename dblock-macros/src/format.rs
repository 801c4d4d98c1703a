//! The part of a placeholder after the colon, as `std::fmt` defines it.

/// Whether a format has `.*` or `width$`.
pub(crate) fn counts_arguments(format: &str) -> bool {
    let named = |(at, _)| format[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    format.contains(".*") || format.match_indices('$').any(named)
}

/// Whether this is `[[fill]align][sign]['#']['0'][width]['.' precision][type]` of `std::fmt`. The compiler
/// would check it too, but would report the wrong column, because the format string is not the one in the
/// source.
pub(crate) fn is_format(format: &str) -> bool {
    let aligned = format.chars().nth(1).is_some_and(|c| "<^>".contains(c));
    let rest = match format.char_indices().nth(2) {
        Some((at, _)) if aligned => &format[at..],
        None if aligned => "",
        _ => skip(format, &['<', '^', '>']),
    };
    let rest = skip(skip(rest, &['+', '-']), &['#']);
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = match rest.strip_prefix('.') {
        Some(precision) => precision.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => rest,
    };
    matches!(
        rest.trim_end(),
        "" | "?" | "x?" | "X?" | "x" | "X" | "o" | "b" | "e" | "E" | "p"
    )
}

/// Without one leading character of a set.
fn skip<'a>(text: &'a str, set: &[char]) -> &'a str {
    text.strip_prefix(set).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_from_nonsense() {
        for good in [
            "",
            "?",
            "08",
            ">5",
            "*^+#08.3x?",
            "é>5",
            "<",
            "*<",
            "x",
            ".2",
            "#?",
        ] {
            assert!(is_format(good) && !counts_arguments(good), "{good}");
        }
        for bad in ["zz", "zz?", "08n", "5.x.", "??", "d"] {
            assert!(!is_format(bad), "{bad}");
        }
        assert!(counts_arguments(".*") && counts_arguments("width_$") && counts_arguments("1$"));
        assert!(!counts_arguments("$>5") && !counts_arguments("x>$"));
    }
}

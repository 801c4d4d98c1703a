//! Durations on the command line, such as `30s` or `1m 30s`.

use std::time::Duration;

/// Reads a duration. The limits are the library's.
///
/// # Errors
/// The mistake, and what to write instead.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let example = "write a number and a unit, such as 500ms, 30s, 5m, 2h or 7d";
    // A single M is a month to humantime, and a minute to whoever writes it.
    if text.contains(['M', 'y']) || text.contains("mo") {
        return Err(format!("months and years are too long for a lock; {example}"));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; {example}"))
}

/// As [`parse`], for the time between two looks.
///
/// # Errors
/// As [`parse`], and below 100 ms.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse(text)?;
    if interval < Duration::from_millis(100) {
        return Err("the database would do little else; write 100ms or more".to_owned());
    }
    Ok(interval)
}

/// As [`parse`], or `forever`.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        text => parse(text).map(Wait::For),
    }
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    For(Duration),
    Forever,
}

/// For people: whole seconds, or milliseconds below a second.
pub(crate) fn shown(duration: Duration) -> String {
    let duration = if duration < Duration::from_secs(1) {
        Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(0))
    } else {
        Duration::from_secs(duration.as_secs())
    };
    humantime::format_duration(duration).to_string()
}

/// For people: with as many digits as are of use.
pub(crate) fn fine(duration: Duration) -> String {
    let unit = if duration < Duration::from_millis(10) {
        1_000
    } else {
        1_000_000
    };
    let nanos = duration.subsec_nanos() / unit * unit;
    format!("{:?}", Duration::new(duration.as_secs(), nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_no_months() {
        assert_eq!(parse("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["", "30", "-1s", "1M", "2months", "1year", "1,5s"] {
            let told = parse(bad).unwrap_err();
            assert!(told.contains("such as 500ms"), "{bad}: {told}");
        }
    }

    #[test]
    fn a_wait_may_be_forever() {
        assert_eq!(parse_wait("forever"), Ok(Wait::Forever));
        assert_eq!(parse_wait("5s"), Ok(Wait::For(Duration::from_secs(5))));
        assert!(parse_wait("never").is_err());
        assert!(parse_interval("99ms").is_err());
        assert_eq!(parse_interval("100ms"), Ok(Duration::from_millis(100)));
    }

    #[test]
    fn durations_are_shown_short() {
        for (millis, text) in [(0, "0s"), (999, "999ms"), (1_999, "1s"), (61_000, "1m 1s")] {
            assert_eq!(shown(Duration::from_millis(millis)), text);
        }
    }
}

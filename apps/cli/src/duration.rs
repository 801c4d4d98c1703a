//! Durations on the command line, such as `30s` or `1m 30s`.

use std::time::Duration;

use dblock_core::duration as grammar;

/// Reads the duration of the option `name`, with the words and the limits of the attribute and of
/// configuration files.
pub(crate) fn of(name: &'static str) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| grammar::parse(name, text)
}

/// Reads a duration that may be zero.
///
/// # Errors
/// The mistake, and what to write instead.
pub(crate) fn or_zero(text: &str) -> Result<Duration, String> {
    grammar::sum(text)
}

/// Reads the time between two looks.
///
/// # Errors
/// As [`or_zero`], and below 100 ms.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = grammar::parse("every", text)?;
    if interval < Duration::from_millis(100) {
        return Err("the database would do little else; write 100ms or more".to_owned());
    }
    Ok(interval)
}

/// Reads for how long nobody must have used a row.
///
/// # Errors
/// As [`or_zero`], and below a day.
pub(crate) fn parse_idle(text: &str) -> Result<Duration, String> {
    let idle = grammar::parse("idle", text)?;
    if idle < Duration::from_hours(24) {
        let why = "so that fence tokens grow even when the database's clock is set back";
        return Err(format!(
            "rows are kept for at least a day, {why}; write 1d or more"
        ));
    }
    Ok(idle)
}

/// Reads a duration, or `forever`.
///
/// # Errors
/// As [`or_zero`], and for a wait of zero.
pub(crate) fn parse_wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        text => grammar::parse("wait", text).map(Wait::For),
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
    fn durations_are_those_of_the_attribute() {
        assert_eq!(of("ttl")("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(or_zero("0s"), Ok(Duration::ZERO));
        for (text, told) in [
            ("30", "write \"30s\" for seconds"),
            ("1M", "`M` would mean months"),
            ("500ms", "cannot be renewed in time"),
            ("31d", "longer than 30 days"),
        ] {
            let error = of("ttl")(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
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

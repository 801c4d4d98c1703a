//! Durations written as strings, such as `"30s"` or `"1m 30s"`: in attributes, which are checked at compile
//! time, in configuration files and on the command line. The crate humantime would not do: it takes `1M` for a
//! month and accepts `0s` as a ttl, and its errors name no remedy.

use std::time::Duration;

/// The shortest ttl.
pub const MIN_TTL: Duration = Duration::from_secs(1);
/// The longest duration of any kind but `remember`.
pub const MAX: Duration = Duration::from_hours(30 * 24);
/// The longest `remember`.
pub const MAX_REMEMBER: Duration = Duration::from_hours(3_650 * 24);

/// Reads the duration in the string value of the argument `name`.
///
/// # Errors
/// The mistake and what to write instead, without the argument's name in front.
pub fn parse(name: &str, text: &str) -> Result<Duration, String> {
    let duration = sum(text)?;
    if duration.is_zero() {
        return Err(match name {
            "wait" => {
                "a wait of zero is the default; leave `wait` out, or give it a length such as \"5s\"".into()
            }
            _ => format!("`{name}` must not be zero; give it a length such as \"30s\""),
        });
    }
    let (longest, words) = match name {
        "remember" => (MAX_REMEMBER, "ten years"),
        _ => (MAX, "30 days"),
    };
    if duration > longest {
        return Err(format!(
            "\"{text}\" is longer than {words}, the longest `{name}` allowed"
        ));
    }
    if name == "remember" && duration < MIN_TTL {
        return Err(format!(
            "an outcome that is forgotten after \"{text}\" protects nothing; give it at least as long as a call may be \
             repeated, such as \"24h\""
        ));
    }
    if name == "ttl" && duration < MIN_TTL {
        return Err(format!(
            "a lease of \"{text}\" cannot be renewed in time; the shortest `ttl` is \"1s\", and \"30s\" is the default"
        ));
    }
    Ok(duration)
}

/// Adds up the parts of `1m 30s`. Knows no limits.
///
/// # Errors
/// As [`parse`].
pub fn sum(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("the duration is empty; write a number and a unit, such as \"30s\"".into());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after.trim_start(), char::is_alphabetic);
        if number.is_empty() {
            return Err(no_number(text, rest));
        }
        if unit.is_empty() {
            return Err(no_unit(text, number, after));
        }
        let millis = millis(unit).ok_or_else(|| unknown_unit(number, unit))?;
        // A number with too many digits for a u64 is far above the limit, which the caller checks.
        let part = number.parse().unwrap_or(u64::MAX).saturating_mul(millis);
        total = total.saturating_add(Duration::from_millis(part));
        rest = after.trim_start();
    }
    Ok(total)
}

/// Splits off the longest prefix of characters that `belongs` accepts.
fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

/// The length of a unit.
fn millis(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        _ => return None,
    })
}

fn no_number(text: &str, rest: &str) -> String {
    if rest.starts_with('-') {
        return format!("\"{text}\" is negative; a duration is a number and a unit, such as \"30s\"");
    }
    format!("\"{text}\" has no number where `{rest}` stands; write a number and a unit, such as \"30s\"")
}

fn no_unit(text: &str, number: &str, after: &str) -> String {
    if after.starts_with(['.', ',']) {
        return format!("\"{text}\" has a fraction; write it with a smaller unit, such as \"1s 500ms\"");
    }
    if !after.is_empty() {
        return format!("`{after}` in \"{text}\" is not a unit; the units are ms, s, m, h and d");
    }
    if text.trim() == number {
        return format!(
            "the unit is missing; write \"{number}s\" for seconds or \"{number}ms\" for milliseconds"
        );
    }
    format!("the unit behind `{number}` is missing in \"{text}\"; the units are ms, s, m, h and d")
}

fn unknown_unit(number: &str, unit: &str) -> String {
    match unit {
        "M" => format!(
            "`M` would mean months, far longer than a lock is held; write \"{number}m\" for minutes \
             or \"{number}ms\" for milliseconds"
        ),
        "S" | "H" | "D" | "MS" | "Ms" | "mS" => {
            format!(
                "units are written in lower case; write \"{number}{}\"",
                unit.to_lowercase()
            )
        }
        "us" | "µs" | "μs" | "ns" => {
            format!("`{unit}` is finer than a lock can be timed; the smallest unit is ms")
        }
        "w" | "week" | "weeks" => {
            format!("weeks are not a unit here; write days, such as \"7d\" for `{number}{unit}`")
        }
        _ => format!("`{unit}` is not a unit; the units are ms, s, m, h and d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_themselves_are_allowed() {
        for (name, shortest, longest, beyond) in [
            ("ttl", Some(("1s", "999ms")), "30d", "30d 1ms"),
            ("wait", None, "30d", "30d 1ms"),
            ("remember", Some(("1s", "999ms")), "3650d", "3650d 1ms"),
        ] {
            assert!(
                parse(name, longest).is_ok() && parse(name, beyond).is_err(),
                "{name}"
            );
            match shortest {
                Some((shortest, below)) => {
                    assert!(
                        parse(name, shortest).is_ok() && parse(name, below).is_err(),
                        "{name}"
                    );
                }
                None => assert!(parse(name, "1ms").is_ok()),
            }
        }
    }

    #[test]
    fn numbers_and_units_add_up() {
        for (text, millis) in [
            ("30s", 30_000),
            (" 5 min ", 300_000),
            ("1m30s", 90_000),
            ("1h 2m 3s 4ms", 3_723_004),
            ("30d", 2_592_000_000),
            ("2 seconds", 2_000),
        ] {
            assert_eq!(parse("ttl", text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_fix() {
        for (name, text, hint) in [
            ("ttl", "30", "write \"30s\" for seconds"),
            ("ttl", "1M", "`M` would mean months"),
            ("ttl", "0s", "must not be zero"),
            ("wait", "0s", "leave `wait` out"),
            ("ttl", "", "is empty"),
            ("ttl", "   ", "is empty"),
            ("ttl", "-5s", "is negative"),
            ("ttl", "1.5s", "has a fraction"),
            ("ttl", "5 years", "`years` is not a unit"),
            ("ttl", "10S", "write \"10s\""),
            ("ttl", "s", "has no number"),
            ("ttl", "1m 30", "the unit behind `30` is missing"),
            ("ttl", "30%", "`%` in \"30%\" is not a unit"),
            ("ttl", "500us", "the smallest unit is ms"),
            ("ttl", "1w", "write days"),
            ("ttl", "999ms", "cannot be renewed"),
            ("wait", "31d", "longer than 30 days"),
            ("ttl", "99999999999999999999999d", "longer than 30 days"),
            (
                "ttl",
                "18446744073709551615ms 18446744073709551615ms",
                "longer than 30 days",
            ),
        ] {
            let error = parse(name, text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}

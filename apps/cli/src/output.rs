//! The output: tables as wide as the terminal, or JSON.

use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal as _, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use rustix::termios::tcgetwinsize;
use serde::Serialize;

use dblock_core::printable::is_invisible;
pub(crate) use dblock_core::printable::printable;

/// Narrower than this, columns would be a few letters each.
const NARROW: u16 = 60;

/// One line of JSON.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    line(&json_text(value)?)
}

/// One line of JSON that a terminal shows as it is: what cannot be seen is escaped.
pub(crate) fn json_text(value: &impl Serialize) -> io::Result<String> {
    let text = serde_json::to_string(value).map_err(io::Error::other)?;
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_invisible(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    Ok(shown)
}

/// One line of text.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// A paragraph under a heading.
pub(crate) fn indented(text: &str) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.add_row([text]);
    fit(&mut table, width());
    for column in table.column_iter_mut() {
        column.set_padding((6, 0));
    }
    line(&table.trim_fmt())
}

/// One line on stderr. That nobody can read it changes nothing.
pub(crate) fn told(text: &impl Display) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// The same on a terminal only: a program sees that by the answer.
pub(crate) fn told_to_a_person(text: &str) {
    if io::stderr().is_terminal() {
        told(&format!("dblock: {text}"));
    }
}

/// The width of the terminal: `COLUMNS`, or as the terminal says. `None` where stdout is none, or does not
/// know.
pub(crate) fn width() -> Option<u16> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let wanted = std::env::var("COLUMNS").ok();
    let wanted = wanted.and_then(|columns| columns.parse().ok());
    // The height may be unknown, as in a session of `script`.
    let columns = || tcgetwinsize(&out).ok().map(|size| size.ws_col);
    wanted.or_else(columns).filter(|columns| *columns > 0)
}

/// Rows under a heading. On a narrow terminal each row is a block of lines instead.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> io::Result<()> {
    line(&arranged(heading, rows, width()))
}

fn arranged<const N: usize>(heading: [&str; N], rows: &[[String; N]], width: Option<u16>) -> String {
    if width.is_some_and(|width| width < NARROW) {
        let blocks: Vec<_> = rows.iter().map(|row| block(heading, row, width)).collect();
        return blocks.join("\n\n");
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(heading);
    table.add_rows(rows);
    fit(&mut table, width);
    // Nothing to the left of the first column.
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// One row as lines of a name and a value. Empty values are left out.
pub(crate) fn block<const N: usize>(names: [&str; N], values: &[String; N], width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in names.iter().zip(values).filter(|(_, value)| !value.is_empty()) {
        table.add_row([*name, value]);
    }
    fit(&mut table, width);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

fn fit(table: &mut Table, width: Option<u16>) {
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> [[String; 3]; 2] {
        let long = "a-host-with-a-very-long-name.example.com/12345 billing::orders::settle";
        [
            ["order:42".into(), long.into(), "1m 3s".into()],
            ["é".repeat(60), "host/7".into(), String::new()],
        ]
    }

    fn widest(text: &str) -> usize {
        text.lines().map(console::measure_text_width).max().unwrap_or(0)
    }

    #[test]
    fn nothing_is_wider_than_the_terminal() {
        for width in [20, 40, 59, 60, 80, 200] {
            let text = arranged(["KEY", "HOLDER", "FOR"], &rows(), Some(width));
            assert!(widest(&text) <= width.into(), "{width}:\n{text}");
            assert!(text.contains("1m 3s"), "{text}");
        }
    }

    #[test]
    fn each_row_is_one_line_in_a_pipe() {
        let text = arranged(["KEY", "HOLDER", "FOR"], &rows(), None);
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jé\n\u{202e}"), "a\\u{1b}[2Jé\\n\\u{202e}");
        let text = "\u{202e}\u{9b}\u{e0041}é\"\n";
        let shown = json_text(&text).unwrap();
        assert_eq!(shown, r#""\u202e\u009b\udb40\udc41é\"\n""#);
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
    }
}

//! Untrusted text, such as a key or a holder, for people.

/// Replaces characters that cannot be seen by their escape codes: control characters, those that turn the
/// direction of what follows, and those without a shape. So no text acts on a terminal, and no key looks like
/// another.
pub fn printable(text: &str) -> String {
    let shown = text.chars().map(|c| {
        if is_invisible(c) {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    });
    shown.collect()
}

/// Whether a character acts on the text around it, or has no shape of its own.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
                | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
        )
}

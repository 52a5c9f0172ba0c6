//! Escaping of text for HTML and SVG.

use std::fmt::Write;

/// Escapes a text for XML, also inside quotation marks: nothing in it is markup. Control characters
/// become U+FFFD.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' | '>' | '&' | '"' | '\'' => write!(escaped, "&#{};", u32::from(letter)),
            _ if letter.is_control() => write!(escaped, "\u{fffd}"),
            _ => write!(escaped, "{letter}"),
        }
        .expect("strings take everything");
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_text() {
        assert_eq!(escaped("a<b>&\"'\u{1}"), "a&#60;b&#62;&#38;&#34;&#39;\u{fffd}");
    }
}

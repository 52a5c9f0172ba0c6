//! Writes metrics in Prometheus's text format, version 0.0.4.
//!
//! Does not know the meaning of the metrics; `metrics.rs` and `target/metrics.rs` do.

use std::fmt::{Display, Write};

/// Metrics as text.
pub struct Exposition {
    text: String,
    /// Prefix of all metric names.
    prefix: &'static str,
    name: String,
}

impl Exposition {
    /// Returns an empty exposition whose metric names begin with `prefix`.
    pub fn new(prefix: &'static str) -> Exposition {
        Exposition { text: String::new(), prefix, name: String::new() }
    }

    /// Begins a metric family. `kind` is `gauge` or `counter`.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.name = format!("{}{name}", self.prefix);
        let name = &self.name;
        // Writing to memory does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a sample to the family that was begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        let _ = writeln!(self.text, "{}{labels} {value}", self.name);
    }

    /// Returns the whole text.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// Escapes a label's value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_a_family_and_escaped_labels() {
        let mut figures = Exposition::new("cairn_");
        figures.family("files", "gauge", "Files.");
        figures.sample(&[], 3);
        figures.sample(&[("job", "a\"b\\c\nd"), ("level", "pfs")], 4.5);
        let expected = "# HELP cairn_files Files.\n# TYPE cairn_files gauge\ncairn_files 3\n\
                        cairn_files{job=\"a\\\"b\\\\c\\nd\",level=\"pfs\"} 4.5\n";
        assert_eq!(figures.into_text(), expected);
    }
}

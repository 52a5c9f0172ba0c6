//! Parses and formats sizes.

/// First letters of the units, in order of magnitude.
const LETTERS: &[u8] = b"KMGTP";

/// Parses a size: a number, optionally with decimals, and a unit. `K`, `M`, `G`, `T`, `P` and
/// `KiB`, `MiB`… are powers of 1024, `KB`, `MB`… powers of 1000. Without a unit the number means
/// bytes. Returns None for anything else.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let scale = unit_bytes(unit.trim())?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || decimals.len() > 9 || decimals.contains('.') {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let mut bytes = u128::from(whole) * u128::from(scale);
    if !decimals.is_empty() {
        let numerator: u64 = decimals.parse().ok()?;
        let denominator = 10_u64.pow(decimals.len() as u32);
        bytes += u128::from(numerator) * u128::from(scale) / u128::from(denominator);
    }
    u64::try_from(bytes).ok()
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let upper = unit.to_ascii_uppercase();
    if matches!(upper.as_str(), "" | "B") {
        return Some(1);
    }
    let (letter, rest) = upper.split_at_checked(1)?;
    let exponent = LETTERS.iter().position(|&known| known == letter.as_bytes()[0])? as u32 + 1;
    match rest {
        "" | "IB" => Some(1024_u64.pow(exponent)),
        "B" => Some(1000_u64.pow(exponent)),
        _ => None,
    }
}

/// Formats a size without rounding, in the largest unit that divides it. [`parse`] reads it back.
pub fn exact(bytes: u64) -> String {
    let mut value = bytes;
    let mut unit = String::new();
    for &letter in LETTERS {
        if value == 0 || value % 1024 != 0 {
            break;
        }
        value /= 1024;
        unit = (letter as char).to_string();
    }
    format!("{value}{unit}")
}

/// Formats a size with three significant digits and a binary unit.
pub fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = ' ';
    for &letter in LETTERS {
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        unit = letter as char;
    }
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {unit}iB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_sizes_are_read_back() {
        let sizes = [(0, "0"), (1000, "1000"), (1024, "1K"), (1 << 25, "32M"), (3 << 29, "1536M")];
        for (bytes, text) in sizes {
            assert_eq!((exact(bytes).as_str(), parse(text)), (text, Some(bytes)));
        }
    }

    #[test]
    fn sizes_with_units_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("8G", 8 << 30),
            ("8g", 8 << 30),
            ("512MiB", 512 << 20),
            ("512 MiB", 512 << 20),
            ("1.5G", 3 << 29),
            ("2KB", 2000),
            ("7B", 7),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", "8GX", "G", "-1", "1e9", "1.", ".5G", "1.2.3", "8 G B", "99999999999P", "½"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_written_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (3 << 29, "1.50 GiB"),
            (100 << 20, "100 MiB"),
            (1024 * 1024 - 1, "1.00 MiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}

//! Text as 64-bit words: little-endian, the last one padded with zeros. Names are hashed, compared,
//! stored and logged in such words, and paths are searched in them.

/// Returns the words of a text.
pub(crate) fn words(text: &[u8]) -> Words<'_> {
    Words { rest: text }
}

/// Iterator of [`words`].
#[derive(Clone)]
pub(crate) struct Words<'t> {
    rest: &'t [u8],
}

impl Iterator for Words<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if let Some((whole, rest)) = self.rest.split_first_chunk() {
            self.rest = rest;
            return Some(u64::from_le_bytes(*whole));
        }
        match core::mem::take(&mut self.rest) {
            [] => None,
            last => Some(last.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))),
        }
    }
}

/// Returns the index of the first slash in a path.
#[inline]
pub(crate) fn find_slash(path: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let mut start = 0;
    for word in words(path) {
        // Slashes are zero bytes in `other`. The lowest byte whose high bit is set in `slashes` is
        // the first zero byte.
        let other = word ^ (ONES * u64::from(b'/'));
        let slashes = other.wrapping_sub(ONES) & !other & HIGH;
        if slashes != 0 {
            return Some(start + slashes.trailing_zeros() as usize / 8);
        }
        start += 8;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_text_are_its_bytes_padded_with_zeros() {
        let text: Vec<u8> = (1..=40).collect();
        for length in 0..text.len() {
            let mut bytes: Vec<u8> = words(&text[..length]).flat_map(u64::to_le_bytes).collect();
            assert_eq!(bytes.len(), length.next_multiple_of(8));
            assert!(bytes.split_off(length).iter().all(|&byte| byte == 0));
            assert_eq!(bytes, text[..length]);
        }
    }

    #[test]
    fn first_slash_is_found_among_all_other_bytes() {
        for length in 0..20 {
            for other in (0..=u8::MAX).filter(|&byte| byte != b'/') {
                let mut path = vec![other; length];
                assert_eq!(find_slash(&path), None, "{other} {length}");
                for at in (0..length).rev() {
                    path[at] = b'/';
                    assert_eq!(find_slash(&path), Some(at), "{other} {length}");
                }
            }
        }
    }
}
